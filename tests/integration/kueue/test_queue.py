"""Jobs in a queue of Kueue: they wait, start with what was admitted, and stop when they are evicted."""

from __future__ import annotations

import pytest

from tests.integration import api as rest
from tests.integration.api import ApiError
from tests.integration.controlplane import ControlPlane
from tests.integration.kubelet import Kubelet
from tests.integration.kueue.conftest import QueuedCluster
from tests.integration.kueue.standin import CLASSES, FLAVORS, condition
from tests.integration.operator.test_fence import CONTROLLED, DRY, refused_for_foreign
from tests.support.predicates import condition as has
from tests.support.predicates import condition as says
from tests.support.predicates import phase

pytestmark = pytest.mark.xdist_group("kueue")  # in one process, since their control plane is expensive
MERGE = "application/merge-patch+json"
GROUP = {"apiVersion": "kueue.x-k8s.io/v1beta2"}


async def test_job_waits_runs_is_preempted_and_runs_again(cluster: QueuedCluster, kubelet: Kubelet):
    taint = {"key": "spot", "operator": "Exists", "effect": "NoSchedule"}
    flavor = {"spec": {"nodeLabels": {"kind": "spot"}, "tolerations": [taint]}}
    await cluster.api.create(
        FLAVORS, {**GROUP, "kind": "ResourceFlavor", "metadata": {"name": "spot"}, **flavor}
    )
    await cluster.enqueue()
    asked = await cluster.queue.of("job")
    await cluster.queue.keep_waiting(asked, "insufficient quota for cpu")
    waiting = await cluster.until(has("Suspended", "True", "Queued"))
    waiting = await cluster.until(lambda job: "insufficient quota" in job["status"].get("message", ""))
    assert waiting["status"]["phase"] == "Suspended"
    assert not kubelet.born

    await cluster.queue.admit(asked, flavors={"cpu": "spot"})
    first = await kubelet.until_running("job-0", "job-1")
    assert all(pod["spec"]["nodeSelector"] == {"kind": "spot"} for pod in first.values())
    assert all(taint in pod["spec"]["tolerations"] for pod in first.values())
    await cluster.queue.of("job", says("PodsReady", "True", "Started"))

    await cluster.queue.preempt(asked)
    await cluster.until(has("Suspended", "True", "Evicted"))
    released = await cluster.queue.of("job", says("QuotaReserved", "False"))
    assert await cluster.api.items(cluster.pods) == []
    assert "admission" not in released["status"]
    assert says("Requeued", "True", "Preempted")(released)

    await cluster.queue.admit(released, flavors={"cpu": "spot"})
    second = await kubelet.until_running("job-0", "job-1")
    for name in second:
        await kubelet.finish(name)
    done = await cluster.until(phase("Succeeded"))
    assert done["status"]["restarts"]["total"] == 0
    await cluster.queue.of("job", says("Finished", "True", "Succeeded"))


async def test_elastic_job_starts_with_what_was_admitted(cluster: QueuedCluster, kubelet: Kubelet):
    await cluster.enqueue(replicas=4, elastic={"minReplicas": 2, "maxReplicas": 4})
    asked = await cluster.queue.of("job")
    assert asked["spec"]["podSets"][0]["minCount"] == 2

    await cluster.queue.admit(asked, count=3)

    await kubelet.until_running("job-0", "job-1", "job-2")
    running = await cluster.until(phase("Running"))
    assert running["status"]["ready"] == "3/3"


async def test_priority_class_that_is_created_later_lets_the_job_queue(cluster: QueuedCluster):
    await cluster.enqueue(labels={"kueue.x-k8s.io/priority-class": cluster.namespace})
    waiting = await cluster.until(has("PodsReady", "False", "QueueUnavailable"))
    assert f"WorkloadPriorityClass {cluster.namespace}" in waiting["status"]["message"]
    assert cluster.namespace in (await cluster.until_event("QueueUnavailable"))["note"]

    kind = {**GROUP, "kind": "WorkloadPriorityClass", "metadata": {"name": cluster.namespace}, "value": 7}
    await cluster.api.create(CLASSES, kind)
    await cluster.api.patch(f"{cluster.jobs}/job", {"metadata": {"annotations": {"look": "again"}}})

    asked = await cluster.queue.of("job")
    assert asked["spec"]["priority"] == 7


@pytest.mark.parametrize("annotated", [False, True])
async def test_workload_that_another_controller_made_is_used(
    cluster: QueuedCluster, kubelet: Kubelet, annotated: bool
):
    pods = {"name": "main", "count": 2, "template": {}}
    body = {**GROUP, "kind": "Workload", "metadata": {"name": "made"}, "spec": {"podSets": [pods]}}
    made = await cluster.api.create(cluster.queue.folder, body)
    await cluster.queue.admit(made)

    name = {"kueue.x-k8s.io/prebuilt-workload-name": "made"}
    await cluster.enqueue(labels={} if annotated else name, annotations=name if annotated else {})

    await kubelet.until_running("job-0", "job-1")
    assert [each["metadata"]["name"] for each in await cluster.api.items(cluster.queue.folder)] == ["made"]


async def test_job_that_runs_in_another_cluster_has_only_a_workload_here(
    cluster: QueuedCluster, kubelet: Kubelet
):
    await cluster.enqueue(managedBy="kueue.x-k8s.io/multikueue")
    asked = await cluster.queue.of("job")
    waiting = await cluster.until(has("Suspended", "True", "Queued"))
    assert waiting["status"]["phase"] == "Suspended"

    await cluster.queue.admit(asked)
    path = f"{cluster.jobs}/job/status"  # Kueue copies it from the other cluster
    for ready, reason in (("False", "WaitForStart"), ("True", "Started")):
        found = [{**condition("PodsReady", ready, "There"), "observedGeneration": 1}]
        await cluster.api.patch(path, {"status": {"phase": "Running", "conditions": found}})
        await cluster.queue.of("job", says("PodsReady", ready, reason))
    copied = (await cluster.job())["status"]
    assert [each["reason"] for each in copied["conditions"]] == ["There"]

    await cluster.queue.preempt(asked)
    await cluster.queue.of("job", says("QuotaReserved", "False"))
    await cluster.until(has("Suspended", "True", "Evicted"))
    assert not kubelet.born


async def test_stolen_token_cannot_touch_a_foreign_workload(
    cluster: QueuedCluster, kueue_plane: ControlPlane
):
    """Neither one that another controller owns, nor its status; one without an owner only by adopting it."""
    other = {"apiVersion": "batch/v1", "kind": "Job", "name": "a", "uid": "b", "controller": True}
    meta = {"name": "theirs", "ownerReferences": [other]}
    theirs = {**GROUP, "kind": "Workload", "metadata": meta, "spec": {"podSets": []}}
    path = f"{cluster.queue.folder}/theirs"
    async with rest.connect(kueue_plane, "operator") as thief:
        await refused_for_foreign(thief, cluster.api, cluster.queue.folder, theirs)
        for what, change in (
            (path, {"spec": {"active": False}}),
            (f"{path}/status", {"status": {"admission": {}}}),
        ):
            with pytest.raises(ApiError, match=CONTROLLED):
                await thief.call("PATCH", what, change, query=DRY, content=MERGE)
