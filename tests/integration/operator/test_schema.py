"""Objects that another version of the schema accepted: each gets a condition and delays no other job."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.chaos.witness import Witness
from tests.integration import controlplane
from tests.integration.api import WITHIN_S, ApiError
from tests.integration.controlplane import CRD, ControlPlane
from tests.integration.kubelet import Kubelet
from tests.integration.operator import process
from tests.integration.operator.conftest import Cluster
from tests.integration.operator.process import Kept
from tests.support.predicates import condition, phase

Json = dict[str, Any]
ANYTHING: Json = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
POD: Json = {"spec": {"containers": [{"name": "trainer", "image": "a"}]}}


def container(**fields: Any) -> Json:
    """Return a spec with one container that has these fields."""
    return {"template": {"spec": {"containers": [{"name": "a", **fields}]}}}


def rule(**fields: Any) -> Json:
    """Return a spec with one recovery rule."""
    return {"template": POD, "recovery": {"rules": [{"action": "FailJob", **fields}]}}


CONTAINERS = "spec.template.spec.containers"
# name -> (spec, the field that the error names)
NONSENSE: dict[str, tuple[Any, str]] = {
    "nothing": (None, "spec"),
    "no-template": ({"replicas": 2}, CONTAINERS),
    "template-is-text": ({"template": "a"}, "spec.template"),
    "containers-is-a-map": ({"template": {"spec": {"containers": {"a": 1}}}}, CONTAINERS),
    "container-is-text": ({"template": {"spec": {"containers": ["a"]}}}, f"{CONTAINERS}[0]"),
    "replicas-are-text": ({"replicas": "two", "template": POD}, "spec.replicas"),
    "replicas-are-many": ({"replicas": 10**9, "template": POD}, "spec.replicas"),
    "rules-are-text": ({"recovery": {"rules": "all"}, "template": POD}, "spec.recovery.rules"),
    "codes-are-a-number": (
        rule(onExitCodes={"operator": "In", "values": 3}),
        "spec.recovery.rules[0].onExitCodes.values",
    ),
    "env-is-text": (container(env="A=B"), f"{CONTAINERS}[0].env"),
    "resources-are-text": (container(resources="much"), f"{CONTAINERS}[0].resources"),
    "mounts-are-text": (
        container(volumeMounts="a") | {"checkpoint": {"mountPath": "/c", "volume": {"emptyDir": {}}}},
        f"{CONTAINERS}[0].volumeMounts",
    ),
    "suspend-is-text": ({"suspend": "yes", "template": POD}, "spec.suspend"),
    "manager-is-a-map": ({"managedBy": {"a": "b"}, "template": POD}, ""),  # managed by another controller
}
# Those that break no rule of the strict schema which the API server evaluates when only the status changes.
STATUS_ACCEPTED = {"nothing", "replicas-are-many", "codes-are-a-number", "mounts-are-text", "suspend-is-text"}


@pytest.fixture
def loosened(granted: ControlPlane) -> Iterator[None]:
    """Make the API server accept any object as a job, until the test restores the schema."""
    crd = json.loads(granted.kubectl("get", "crd", CRD, "-o", "json"))
    version = {**crd["spec"]["versions"][0], "schema": {"openAPIV3Schema": ANYTHING}}
    version["subresources"] = {"status": {}}  # not scale, which requires replicas to be a number
    granted.kubectl("patch", "crd", CRD, "--type=merge", "-p", json.dumps({"spec": {"versions": [version]}}))
    yield
    controlplane.install_crd(granted)


async def submit(cluster: Cluster, name: str, spec: Any, *, patiently: bool = True) -> None:
    """Create a job; `patiently`: retry while the API server still uses the strict schema."""
    body: Json = {
        "apiVersion": "dtj.dev/v1alpha1",
        "kind": "DistributedTrainingJob",
        "metadata": {"name": name},
    }
    body |= {} if spec is None else {"spec": spec}
    create = cluster.api.create_patiently if patiently else cluster.api.create
    await create(cluster.jobs, body)


async def test_invalid_job_gets_a_condition_and_delays_no_other_job(
    loosened: None, cluster: Cluster, kubelet: Kubelet, operator: Kept, witness: Witness
):
    for name, (spec, _) in NONSENSE.items():
        await submit(cluster, name, spec)

    await valid_jobs_run(cluster)
    for name, (_, field) in NONSENSE.items():
        if field:
            await fails(cluster, name, field)
    assert "status" not in await cluster.job("manager-is-a-map")
    assert set(kubelet.pods) == {"old-0", "new-0"}


async def test_job_whose_status_a_stricter_schema_refuses_gets_an_event_and_delays_no_other_job(
    loosened: None, granted: ControlPlane, cluster: Cluster, kubelet: Kubelet, witness: Witness
):
    """The rules of the schema hold for every write of a job, also of its status only."""
    for name, (spec, _) in NONSENSE.items():
        await submit(cluster, name, spec)
    controlplane.install_crd(granted)
    await until_strict(cluster)
    async with process.kept(granted, watch=cluster.namespace):
        await valid_jobs_run(cluster)
        for name, (_, field) in NONSENSE.items():
            if name in STATUS_ACCEPTED:
                await fails(cluster, name, field)
            elif field:
                await cluster.until_event("StatusRefused", name)
    assert set(kubelet.pods) == {"old-0", "new-0"}


async def valid_jobs_run(cluster: Cluster) -> None:
    """Create two jobs that every version of the schema accepts, and wait until they run."""
    await submit(cluster, "old", {"template": POD})  # as in a version before most fields
    await submit(cluster, "new", {"template": POD, "replicas": 1, "fieldOfTomorrow": {"a": [1]}})
    for name in ("old", "new"):
        await cluster.until(phase("Running"), name)


async def fails(cluster: Cluster, name: str, field: str) -> None:
    """Wait until a job has failed with a message about this field, and delete it."""
    job = await cluster.until(condition("Failed", reason="BadSpec"), name)
    assert f"{field}:" in job["status"]["message"], job["status"]["message"]
    await cluster.api.delete(f"{cluster.jobs}/{name}")


async def until_strict(cluster: Cluster) -> None:
    """Wait until the API server refuses a job without a spec; it uses the loose one a while longer."""
    async with asyncio.timeout(WITHIN_S):
        while True:
            try:
                await submit(cluster, "probe", None, patiently=False)
            except ApiError as error:
                if error.status == 422:
                    return
            else:
                await cluster.api.delete(f"{cluster.jobs}/probe")
            await asyncio.sleep(0.1)  # between two tries
