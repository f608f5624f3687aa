"""A CRD that is older or newer than the operator: jobs that run are left alone until the two match again."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration import controlplane
from tests.integration.api import WITHIN_S
from tests.integration.controlplane import CRD, ControlPlane
from tests.integration.kubelet import Kubelet, runs
from tests.integration.operator.conftest import Cluster
from tests.integration.operator.process import Kept
from tests.support.predicates import phase

Json = dict[str, Any]


@pytest.fixture
def version(granted: ControlPlane) -> Iterator[Json]:
    """Return the only version of the CRD, for changes; the original is restored at the end."""
    yield json.loads(granted.kubectl("get", "crd", CRD, "-o", "json"))["spec"]["versions"][0]
    controlplane.install_crd(granted)


def replace_crd(plane: ControlPlane, version: Json) -> None:
    """Make this the only version of the CRD."""
    plane.kubectl("patch", "crd", CRD, "--type=merge", "-p", json.dumps({"spec": {"versions": [version]}}))


async def until_read(plane: ControlPlane, since: int, path: str, status: int, times: int) -> None:
    """Wait until the operator has read an object this many times with this answer, by the audit log."""
    deadline, found = time.monotonic() + WITHIN_S, 0
    while found < times:
        assert time.monotonic() < deadline, f"the operator got {found} answers with status {status}"
        await asyncio.sleep(0.05)  # between two reads of the log
        lines, since = plane.audit_from(since)
        reads = [line for line in lines if line["verb"] == "get" and line["requestURI"] == path]
        found += sum(line["responseStatus"]["code"] == status for line in reads)


async def test_pods_stay_while_the_version_of_their_job_is_not_served(
    version: Json, granted: ControlPlane, cluster: Cluster, kubelet: Kubelet, operator: Kept
):
    await cluster.submit()
    await cluster.until(phase("Running"))
    replace_crd(granted, {**version, "served": False})
    path = f"{cluster.jobs}/job"
    await cluster.api.until_answered(path, 404)
    _, since = granted.audit_from(0)

    await kubelet.set_status("job-1", {"conditions": [{"type": "Ready", "status": "False"}]})

    await until_read(granted, since, path, 404, times=2)
    replace_crd(granted, version)
    await cluster.api.until_answered(path, 200)
    changed = await cluster.change(suspend=False, activeDeadlineSeconds=86_400)
    generation = changed["metadata"]["generation"]
    await cluster.until(lambda job: job["status"]["observedGeneration"] == generation)
    assert len(kubelet.born) == 2
    assert {name for name, pod in kubelet.pods.items() if runs(pod)} == {"job-0", "job-1"}
