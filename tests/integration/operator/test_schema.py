"""Objects that another version of the schema accepted: each gets a condition and delays no other job."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.chaos.witness import Witness
from tests.integration import controlplane
from tests.integration.controlplane import CRD, ControlPlane
from tests.integration.kubelet import Kubelet
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


@pytest.fixture
def loosened(granted: ControlPlane) -> Iterator[None]:
    """Make the API server accept any object as a job, until the test restores the schema."""
    crd = json.loads(granted.kubectl("get", "crd", CRD, "-o", "json"))
    version = {**crd["spec"]["versions"][0], "schema": {"openAPIV3Schema": ANYTHING}}
    version["subresources"] = {"status": {}}  # not scale, which requires replicas to be a number
    granted.kubectl("patch", "crd", CRD, "--type=merge", "-p", json.dumps({"spec": {"versions": [version]}}))
    yield
    controlplane.install_crd(granted)


async def submit(cluster: Cluster, name: str, spec: Any) -> None:
    """Create a job; retry while the API server still uses the strict schema."""
    body: Json = {
        "apiVersion": "dtj.dev/v1alpha1",
        "kind": "DistributedTrainingJob",
        "metadata": {"name": name},
    }
    body |= {} if spec is None else {"spec": spec}
    await cluster.api.create_patiently(cluster.jobs, body)


@pytest.mark.parametrize("tightened", [True, False], ids=["schema strict again", "schema still loose"])
async def test_invalid_job_gets_a_condition_and_delays_no_other_job(
    loosened: None, granted: ControlPlane, cluster: Cluster, kubelet: Kubelet, operator: Kept,
    witness: Witness, tightened: bool,
):  # fmt: skip
    for name, (spec, _) in NONSENSE.items():
        await submit(cluster, name, spec)
    if tightened:
        controlplane.install_crd(granted)

    await submit(cluster, "old", {"template": POD})  # as in a version before most fields
    await submit(cluster, "new", {"template": POD, "replicas": 1, "fieldOfTomorrow": {"a": [1]}})
    for name in ("old", "new"):
        await cluster.until(phase("Running"), name)
    for name, (_, field) in NONSENSE.items():
        if not field:
            continue
        job = await cluster.until(condition("Failed", reason="BadSpec"), name)
        assert f"{field}:" in job["status"]["message"], job["status"]["message"]
        await cluster.api.delete(f"{cluster.jobs}/{name}")
    assert "status" not in await cluster.job("manager-is-a-map")
    assert set(kubelet.pods) == {"old-0", "new-0"}
