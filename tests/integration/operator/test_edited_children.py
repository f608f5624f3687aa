"""Other clients delete, edit and relabel children of a job, or take their names: fixed or reported."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.chaos.witness import Witness
from tests.integration.api import POLICIES, SERVICES
from tests.integration.controlplane import ControlPlane
from tests.integration.kubelet import Kubelet
from tests.integration.operator.conftest import Cluster
from tests.integration.operator.test_lifecycle import of
from tests.support.predicates import condition, phase

pytestmark = pytest.mark.usefixtures("operator")
Json = dict[str, Any]
Change = Callable[[Cluster, str], Awaitable[Any]]
NETWORK = {"Service": SERVICES, "NetworkPolicy": POLICIES}


@pytest.fixture
async def running(cluster: Cluster, kubelet: Kubelet) -> Json:
    """Return a running job."""
    await cluster.submit()
    await kubelet.until_running("job-0", "job-1")
    return await cluster.until(phase("Running"))


def changing(patch: Json) -> Change:
    """Return a function that merges this into an object."""
    return lambda cluster, path: cluster.api.patch(path, patch)


def removing(cluster: Cluster, path: str) -> Awaitable[Any]:
    """Delete an object."""
    return cluster.api.delete(path)


NO_LABEL: Json = {"metadata": {"labels": {"dtj.dev/job-name": None}}}
OTHER_LABEL: Json = {"metadata": {"labels": {"dtj.dev/job-name": "other"}}}
CHANGES = [
    pytest.param("Service", removing, id="Service deleted"),
    pytest.param("NetworkPolicy", removing, id="NetworkPolicy deleted"),
    pytest.param("Service", changing({"spec": {"selector": {"a": "b"}}}), id="Service selects other pods"),
    pytest.param(
        "Service", changing({"spec": {"publishNotReadyAddresses": False}}), id="Service hides starting ranks"
    ),
    pytest.param(
        "NetworkPolicy", changing({"spec": {"ingress": [{}]}}), id="NetworkPolicy allows all ingress"
    ),
    pytest.param(
        "NetworkPolicy",
        changing({"spec": {"podSelector": {"matchLabels": None}}}),
        id="NetworkPolicy selects all pods",
    ),
    pytest.param("Service", changing(NO_LABEL), id="Service loses its label"),
    pytest.param("NetworkPolicy", changing(OTHER_LABEL), id="NetworkPolicy relabelled"),
]


@pytest.mark.parametrize(("kind", "change"), CHANGES)
async def test_service_and_network_policy_are_restored(
    cluster: Cluster, kubelet: Kubelet, running: Json, witness: Witness, kind: str, change: Change
):
    path = f"{NETWORK[kind].format(cluster.namespace)}/job"
    before = await cluster.api.get(path)

    await change(cluster, path)

    def restored(seen: Json) -> bool:
        same_labels = seen["metadata"]["labels"] == before["metadata"]["labels"]
        same: bool = seen["spec"] == before["spec"] and same_labels
        return same and seen["metadata"]["resourceVersion"] != before["metadata"]["resourceVersion"]

    after = await cluster.api.until(path, restored)
    in_place = after["metadata"]["uid"] == before["metadata"]["uid"]
    assert in_place == (change is not removing), "an edited NetworkPolicy protects the ranks without a gap"
    await witness.settled()
    assert len(kubelet.born) == 2, "its pods keep running"


async def test_repeated_edit_is_reverted_at_a_limited_rate(
    cluster: Cluster, kubelet: Kubelet, running: Json, witness: Witness
):
    """For example by a webhook or another controller."""
    path = f"{SERVICES.format(cluster.namespace)}/job"
    theirs: Json = {"spec": {"selector": {"a": "b"}}}
    ours = (await cluster.api.get(path))["spec"]["selector"]
    await cluster.api.patch(path, theirs)
    await cluster.api.until(path, lambda seen: seen["spec"]["selector"] == ours)
    await cluster.api.patch(path, theirs)

    # Other jobs start and finish meanwhile, so it had enough time.
    await cluster.submit("other")
    await cluster.until(phase("Running"), "other")
    assert (await cluster.api.get(path))["spec"]["selector"] == ours | {"a": "b"}


async def test_foreign_annotations_and_labels_are_kept(
    cluster: Cluster, kubelet: Kubelet, running: Json, granted: ControlPlane
):
    path = f"{SERVICES.format(cluster.namespace)}/job"
    await cluster.api.patch(path, {"metadata": {"annotations": {"a": "b"}, "labels": {"c": "d"}}})
    edited = await cluster.api.patch(path, {"spec": {"publishNotReadyAddresses": False}})
    seen = await cluster.api.until(path, lambda seen: seen["spec"].get("publishNotReadyAddresses") is True)

    assert seen["metadata"]["annotations"] == edited["metadata"]["annotations"] == {"a": "b"}
    assert seen["metadata"]["labels"] == edited["metadata"]["labels"]
    assert seen["metadata"]["uid"] == edited["metadata"]["uid"]


async def test_service_that_an_edit_gave_an_address_is_replaced(
    cluster: Cluster, kubelet: Kubelet, running: Json, witness: Witness
):
    """The API server does not let an update take the address away."""
    path = f"{SERVICES.format(cluster.namespace)}/job"
    before = await cluster.api.get(path)
    away: Json = {"type": "ExternalName", "externalName": "a.example", "clusterIP": None, "clusterIPs": None}
    await cluster.api.patch(path, {"spec": away})

    await cluster.api.until(path, lambda seen: seen["spec"] == before["spec"])
    await witness.settled()


@pytest.mark.parametrize(
    "patch",
    [
        pytest.param(NO_LABEL, id="label removed"),
        pytest.param(OTHER_LABEL, id="another job's label"),
        pytest.param({"metadata": {"labels": {"dtj.dev/attempt": "7"}}}, id="another attempt"),
    ],
)
async def test_relabelled_pod_is_replaced(
    cluster: Cluster, kubelet: Kubelet, running: Json, witness: Witness, patch: Json
):
    pod = kubelet.pods["job-1"]
    uid, node = pod["metadata"]["uid"], pod["spec"]["nodeName"]
    await cluster.submit("other")
    await cluster.until(phase("Running"), "other")

    await cluster.api.patch(f"{cluster.pods}/job-1", patch)

    await kubelet.until(lambda pods: "job-1" in pods and pods["job-1"]["metadata"]["uid"] != uid)
    await witness.settled()
    job = await cluster.until(phase("Running"))
    assert job["status"]["restarts"]["counted"] == 0
    failure = job["status"]["failure"]
    assert (failure["reason"], failure["replica"], failure["node"]) == ("Evicted", 1, node)
    assert "a label" in failure["message"], "the pod was not deleted"
    assert (await cluster.job("other"))["status"]["restarts"]["total"] == 0


async def test_pod_without_an_owner_is_not_touched(cluster: Cluster, kubelet: Kubelet, running: Json):
    orphan = await cluster.api.patch(f"{cluster.pods}/job-1", {"metadata": {"ownerReferences": None}})

    job = await cluster.until(condition("PodsReady", "False", "NameConflict"))

    assert "Pod job-1 exists and does not belong to this job" in of(job, "PodsReady")["message"]
    assert kubelet.pods["job-1"]["metadata"]["uid"] == orphan["metadata"]["uid"]
    assert "deletionTimestamp" not in kubelet.pods["job-1"]["metadata"]
    await cluster.api.delete(f"{cluster.pods}/job-1")
    await cluster.until(lambda job: phase("Running")(job) and condition("PodsReady")(job))


async def test_foreign_service_in_place_of_ours_is_not_touched(
    cluster: Cluster, kubelet: Kubelet, running: Json, witness: Witness
):
    """Our Service is deleted and replaced before the operator can recreate it; the foreign one stays."""
    services = SERVICES.format(cluster.namespace)
    theirs: Json = {"metadata": {"name": "late"}, "spec": {"ports": [{"port": 80}]}}
    mine = await cluster.api.create(services, theirs)
    await cluster.submit("late")
    await cluster.until(condition("PodsReady", "False", "NameConflict"), "late")

    await cluster.api.delete(f"{services}/late", preconditions={"uid": mine["metadata"]["uid"]})

    await cluster.until(condition("PodsReady"), "late")
    await witness.settled()
