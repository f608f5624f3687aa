"""The operator's clock is set forward or back by an hour while it works (with Debian's libfaketime)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dtj_operator.model import times
from tests.chaos.clock import MISSING, Clock, library
from tests.chaos.witness import Witness
from tests.integration.controlplane import ControlPlane
from tests.integration.kubelet import Kubelet
from tests.integration.operator import process
from tests.integration.operator.conftest import Cluster
from tests.support.predicates import phase

Json = dict[str, Any]


@pytest.fixture
def clock(tmp_path: Path) -> Clock:
    """Return a clock for one operator."""
    if library() is None:
        pytest.skip(MISSING)
    return Clock(tmp_path)


@pytest.mark.parametrize("hours", [1, -1], ids=["an hour forwards", "an hour backwards"])
async def test_clock_change_stops_nothing(
    granted: ControlPlane, cluster: Cluster, kubelet: Kubelet, witness: Witness, clock: Clock, hours: int
):
    async with process.kept(
        granted, watch=cluster.namespace, environment=clock.environment, identity="operator-0"
    ):
        for name in ("crashed", "again"):
            await cluster.submit(name, recovery={"backoffSeconds": 1})
            await cluster.until(phase("Running"), name)
        # The deadline and the TTL are longer than the jump, so the jump must not end either.
        await cluster.submit("limited", activeDeadlineSeconds=9000)
        await cluster.until(phase("Running"), "limited")
        before = await cluster.job("limited")
        kubelet.holds = {"crashed-0"}  # the job waits for this pod in the middle of a restart
        await kubelet.finish("crashed-1", 1)
        await cluster.until(phase("Recovering"), "crashed")

        clock.shift(hours)
        await kubelet.release("crashed-0")
        await kubelet.finish("again-1", 1)
        await cluster.submit("new")

        await cluster.until(phase("Running"), "new")
        for name in ("crashed", "again"):
            job = await cluster.until(
                lambda job: phase("Running")(job) and job["status"]["attempt"] == 1, name
            )
            assert job["status"]["restarts"]["counted"] == 1
        moved = await cluster.job("new")
        apart_s = hour_of(moved) - hour_of(before)
        assert round(apart_s / 3600) == hours, "the clock was changed"
        assert phase("Running")(await cluster.job("limited"))
        await witness.settled()


def hour_of(job: Json) -> float:
    """Return when a job started, by the operator's clock."""
    found = times.parse(job["status"]["startTime"])
    assert found is not None
    return found
