"""A CRD that is older or newer than the operator: jobs that run are left alone until the two match again."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.chaos.witness import Witness
from tests.integration import controlplane
from tests.integration.api import WITHIN_S, ApiError
from tests.integration.controlplane import CRD, ControlPlane
from tests.integration.kubelet import Kubelet, runs
from tests.integration.operator import process
from tests.integration.operator.conftest import Cluster
from tests.integration.operator.process import Kept
from tests.integration.operator.test_lifecycle import of
from tests.support.predicates import condition, phase

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


def with_value(version: Json, field: str, value: str) -> Json:
    """Return the version of a newer CRD: it has one more value of a field, and lets a running job change."""
    newer: Json = json.loads(json.dumps(version))
    spec = newer["schema"]["openAPIV3Schema"]["properties"]["spec"]
    spec["properties"][field]["enum"].append(value)
    for fixed in (spec, spec["properties"][field]):
        fixed.pop("x-kubernetes-validations", None)
    return newer


async def test_running_job_survives_a_value_that_only_a_newer_operator_knows(
    version: Json, granted: ControlPlane, cluster: Cluster, kubelet: Kubelet, witness: Witness
):
    path = f"{cluster.jobs}/job"
    async with process.running(granted, watch=cluster.namespace, identity="older") as older:
        await cluster.submit()
        await cluster.until(phase("Running"))
        # An upgrade: the CRD comes before the operator that knows the new value.
        replace_crd(granted, with_value(version, "cleanPodPolicy", "Failed"))
        await until_accepted(cluster, cleanPodPolicy="Failed")

        job = await cluster.until(condition("Accepted", "False", "UnsupportedValue"))

        assert "spec.cleanPodPolicy: invalid value 'Failed'" in of(job, "Accepted")["message"]
        assert "upgrade the operator" in (await cluster.until_event("UnsupportedValue"))["note"]
        await cluster.submit("never-begun", cleanPodPolicy="Failed")
        await cluster.until(condition("Failed", reason="BadSpec"), "never-begun")
        _, since = granted.audit_from(0)
        await kubelet.finish("job-1", 1)
        await cluster.api.patch(path, {"metadata": {"annotations": {"note": "read this job again"}}})
        await until_read(granted, since, path, 200, times=1)
        await older.stop()

    _, since = granted.audit_from(0)
    # A rollback: an operator that starts now finds the job with that value.
    async with process.kept(granted, watch=cluster.namespace, identity="rolled-back"):
        await until_read(granted, since, path, 200, times=1)
        await cluster.change(activeDeadlineSeconds=1)
        await until_read(granted, since, path, 200, times=2)
        assert len(kubelet.born) == 2
        assert phase("Running")(await cluster.job())

        await cluster.change(cleanPodPolicy="Running", activeDeadlineSeconds=None)

        job = await cluster.until(lambda job: job["status"]["attempt"] == 1 and phase("Running")(job))
        assert of(job, "Accepted")["status"] == "True"


def without_fields(version: Json, *fields: str) -> Json:
    """Return the version of an older CRD: the API server drops these fields of a status."""
    older: Json = json.loads(json.dumps(version))
    for field in fields:
        del older["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"][field]
    return older


async def test_operator_that_is_newer_than_the_crd_neither_restarts_a_job_nor_writes_again_and_again(
    version: Json, granted: ControlPlane, cluster: Cluster, kubelet: Kubelet, operator: Kept
):
    await cluster.submit()
    await cluster.until(phase("Running"))
    replace_crd(granted, without_fields(version, "worldSize", "failures", "replicaStatuses"))
    await cluster.until(lambda job: "worldSize" not in job["status"])
    _, since = granted.audit_from(0)

    changed = await cluster.change(activeDeadlineSeconds=86_400)
    generation = changed["metadata"]["generation"]
    await cluster.until(lambda job: job["status"]["observedGeneration"] == generation)
    assert len(kubelet.born) == 2
    await kubelet.finish("job-1", 1)
    await cluster.until(lambda job: phase("Running")(job) and job["status"]["attempt"] == 1)

    lines, _ = granted.audit_from(since)
    writes = [
        line for line in lines if line["verb"] == "patch" and line["requestURI"].endswith("/job/status")
    ]
    assert 3 <= len(writes) < 15, "one for the deadline, and some for the restart"


async def until_accepted(cluster: Cluster, **spec: Any) -> None:
    """Change a job as soon as the API server uses the CRD that allows it."""
    deadline = time.monotonic() + WITHIN_S
    while True:
        try:
            await cluster.change(**spec)
        except ApiError:
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.05)  # between two tries
        else:
            return
