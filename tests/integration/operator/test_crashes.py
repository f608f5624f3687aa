"""The operator is killed again and again while it works: nothing is created twice or forgotten."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from tests.integration import api as rest
from tests.integration import controlplane
from tests.integration.api import JOBS, PODS, WITHIN_S, Api
from tests.integration.chart.conftest import Helm
from tests.integration.controlplane import ControlPlane
from tests.integration.operator import process
from tests.integration.operator.conftest import grant, job

Json = dict[str, Any]
JOBS_MADE, PODS_EACH, KILLS = 30, 4, 20
SEED = 20260117


class Births:
    """Every pod that is ever created, from a watch that started before the first one."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self.uids: dict[str, list[str]] = {}
        self.count = 0
        self._changed = asyncio.Condition()

    async def follow(self) -> None:
        """Watch forever."""
        async with aclosing(self._api.watch(PODS.format("jobs"))) as events:
            async for kind, pod in events:
                if kind == "ADDED":
                    self.uids.setdefault(pod["metadata"]["name"], []).append(pod["metadata"]["uid"])
                    self.count += 1
                    async with self._changed:
                        self._changed.notify_all()

    async def reach(self, count: int, within_s: float) -> bool:
        """Wait until `count` pods have been created; False if that takes too long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s), self._changed:
                await self._changed.wait_for(lambda: self.count >= count)
                return True
        return False


def created_by_operator(plane: ControlPlane) -> Counter[str]:
    """Return how many times the API server let the operator create each pod, from its audit log."""
    return Counter(
        line["objectRef"]["name"]
        for line in plane.audit()
        if line["verb"] == "create"
        and line.get("objectRef", {}).get("resource") == "pods"
        and line["responseStatus"]["code"] == 201
    )


@pytest.mark.timeout(900)
async def test_every_pod_is_created_exactly_once(tmp_path: Path, helm: Helm):
    chance = random.Random(SEED)
    with controlplane.running(tmp_path) as plane:
        controlplane.install_crd(plane)
        plane.kubectl("create", "namespace", "jobs")
        grant(helm, plane)
        async with rest.connect(plane) as api:
            births = Births(api)
            watch = asyncio.create_task(births.follow())
            for number in range(JOBS_MADE):
                await api.create(JOBS.format("jobs"), job(f"job-{number}", replicas=PODS_EACH))

            total = JOBS_MADE * PODS_EACH
            # Kill at moments spread over all the work: between any two pods, and some after the last one.
            for moment in sorted(chance.randint(1, total) for _ in range(KILLS)):
                # Slow enough that a kill interrupts some work.
                operator = await process.start(plane, rate=60)
                await births.reach(moment, within_s=WITHIN_S)
                await asyncio.sleep(chance.uniform(0, 0.05))  # not always right after a create
                await operator.kill()

            async with process.kept(plane):
                assert await births.reach(total, within_s=WITHIN_S), f"{births.count} of {total} pods"
                for number in range(JOBS_MADE):
                    await api.until(
                        f"{JOBS.format('jobs')}/job-{number}",
                        lambda seen: (
                            seen.get("status", {}).get("replicaStatuses", {}).get("active") == PODS_EACH
                        ),
                    )
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)

        expected = {f"job-{number}-{index}" for number in range(JOBS_MADE) for index in range(PODS_EACH)}
        assert {name: len(uids) for name, uids in births.uids.items()} == dict.fromkeys(expected, 1)
        # Not equal: a create that a kill interrupts may succeed without a 201 in the log.
        assert created_by_operator(plane) <= Counter(expected)
