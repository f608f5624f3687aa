"""The operator with a real Kueue, where DTJ_TEST_KUEUE names one: quota, preemption, time limits, places.

What Kueue decides is its own; these tests check that both sides understand each other.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.integration.controlplane import ControlPlane
from tests.integration.kubelet import Kubelet, now
from tests.integration.kueue import manager
from tests.integration.kueue.conftest import QueuedCluster, operated
from tests.integration.kueue.places import HOST, RACK, add_node, create_topology, lose_node
from tests.integration.kueue.standin import GROUP, VERSION, condition
from tests.support.predicates import condition as has
from tests.support.predicates import condition as says
from tests.support.predicates import phase

pytestmark = [
    pytest.mark.xdist_group("kueue-manager"),
    pytest.mark.skipif(manager.program() is None, reason=manager.MISSING),
]
Json = dict[str, Any]
ELASTIC = {"minReplicas": 2, "maxReplicas": 4}


@pytest.fixture
async def cluster(real_plane: ControlPlane) -> AsyncIterator[QueuedCluster]:
    """Return a namespace with an operator; its queue is still missing."""
    async with operated(real_plane) as cluster:
        yield cluster


async def test_preempted_job_stops_waits_and_continues(cluster: QueuedCluster, kubelet: Kubelet):
    taint = {"key": "spot", "operator": "Exists", "effect": "NoSchedule"}
    await cluster.open(2, {"nodeLabels": {"kind": "spot"}, "tolerations": [taint]})
    await cluster.enqueue_counted("low")
    first = await kubelet.until_running("low-0", "low-1")
    assert all(pod["spec"]["nodeSelector"] == {"kind": "spot"} for pod in first.values())
    assert all(taint in pod["spec"]["tolerations"] for pod in first.values())
    await cluster.queue.of("low", says("PodsReady", "True", "Started"))
    kubelet.holds = {"low-0", "low-1"}

    await cluster.enqueue_counted("high", {"kueue.x-k8s.io/priority-class": cluster.namespace})
    await kubelet.until(lambda pods: all("deletionTimestamp" in pod["metadata"] for pod in pods.values()))
    await cluster.until(has("Suspended", "True", "Evicted"), "low")
    for name in ("low-0", "low-1"):  # their ranks have committed a checkpoint
        await kubelet.finish(name, 75)
        await kubelet.release(name)

    await kubelet.until_running("high-0", "high-1")
    waiting = await cluster.queue.of("low", says("QuotaReserved", "False"))
    assert says("Requeued", "True", "Preempted")(waiting)
    for name in ("high-0", "high-1"):
        await kubelet.finish(name)
    await cluster.until(phase("Succeeded"), "high")
    await cluster.queue.of("high", says("Finished", "True", "Succeeded"))
    await kubelet.until(
        lambda pods: all(
            pods.get(n, {}).get("status", {}).get("phase") == "Running" for n in ("low-0", "low-1")
        )
    )
    for name in ("low-0", "low-1"):
        await kubelet.finish(name)
    done = await cluster.until(phase("Succeeded"), "low")
    assert done["status"]["restarts"]["total"] == 0
    await cluster.queue.of("low", says("Finished", "True", "Succeeded"))


async def test_elastic_job_is_admitted_with_what_the_quota_allows(cluster: QueuedCluster, kubelet: Kubelet):
    await cluster.open(3)
    await cluster.enqueue_counted("job", replicas=4, elastic=ELASTIC)

    await kubelet.until_running("job-0", "job-1", "job-2")

    running = await cluster.until(phase("Running"))
    assert running["status"]["ready"] == "3/3"


async def test_job_that_never_gets_ready_is_requeued_and_then_deactivated(
    cluster: QueuedCluster, kubelet: Kubelet
):
    kubelet.starts = False
    await cluster.open(2)
    await cluster.enqueue_counted("job")

    evicted = await cluster.queue.of("job", says("Evicted", "True", "PodsReadyTimeout"))
    name = evicted["metadata"]["name"]
    delayed = await cluster.queue.of(
        "job", lambda found: "requeueAt" in found["status"].get("requeueState", {})
    )
    assert delayed["metadata"]["name"] == name
    await cluster.queue.of("job", says("Requeued", "True", "BackoffFinished"))
    await kubelet.until(lambda pods: len({uid for _, uid in kubelet.born}) == 4)
    waiting = await cluster.until(has("Suspended", "True", "Deactivated"))

    assert f"set spec.active of Workload {name} to true" in waiting["status"]["message"]
    assert waiting["status"]["restarts"]["total"] == 0
    await kubelet.until(lambda pods: not pods)
    kubelet.starts = True
    await cluster.api.patch(f"{cluster.queue.folder}/{name}", {"spec": {"active": True}})
    await kubelet.until_running("job-0", "job-1")


async def test_job_is_stopped_after_its_maximum_time(cluster: QueuedCluster, kubelet: Kubelet):
    await cluster.open(2)
    await cluster.enqueue_counted("job", {"kueue.x-k8s.io/max-exec-time-seconds": "3"})
    await kubelet.until_running("job-0", "job-1")

    await cluster.until(has("Suspended", "True", "Deactivated"))

    await cluster.until(lambda job: "maximum execution time" in job["status"].get("message", ""))
    await kubelet.until(lambda pods: not pods)
    released = await cluster.queue.of("job", says("QuotaReserved", "False"))
    assert "admission" not in released["status"]
    assert "accumulatedPastExecutionTimeSeconds" not in released["status"], "it would be stopped at once"


async def test_queue_that_does_not_exist_is_named(cluster: QueuedCluster, kubelet: Kubelet):
    await cluster.enqueue_counted("job")
    waiting = await cluster.until(has("Suspended", "True", "Inadmissible"))
    assert "LocalQueue gpus doesn't exist" in waiting["status"]["message"]
    await cluster.until_event("Inadmissible")

    await cluster.open(2)
    await kubelet.until_running("job-0", "job-1")
    await cluster.enqueue_counted("large", replicas=3)
    waiting = await cluster.until(has("Suspended", "True", "Inadmissible"), "large")
    assert "maximum capacity" in waiting["status"]["message"]


async def test_flavor_that_does_not_exist_is_reported(cluster: QueuedCluster):
    await cluster.open(2, without="ResourceFlavor")
    await cluster.enqueue_counted("job")
    waiting = await cluster.until(has("Suspended", "True", "Inadmissible"))
    assert "`kubectl describe clusterqueue` says what it lacks" in waiting["status"]["message"]
    await cluster.until_event("Inadmissible")


async def test_topology_level_that_does_not_exist_is_named(cluster: QueuedCluster, real_plane: ControlPlane):
    await create_topology(cluster)
    add_node(real_plane, f"{cluster.namespace}-0", cluster.namespace, "rack-0")
    await cluster.open(8, {"nodeLabels": {"test": cluster.namespace}, "topologyName": cluster.namespace})
    container = {"name": "trainer", "image": "trainer:1", "resources": {"requests": {"cpu": "1"}}}
    template = {
        "metadata": {"annotations": {"kueue.x-k8s.io/podset-required-topology": "example.com/no-such"}},
        "spec": {"containers": [container]},
    }
    await cluster.enqueue("job", template=template)
    waiting = await cluster.until(lambda job: "example.com/no-such" in job["status"].get("message", ""))
    assert has("Suspended", "True", "Inadmissible")(waiting), waiting["status"]
    await cluster.until_event("Inadmissible")


async def test_queue_gives_back_what_exceeds_its_fair_share(cluster: QueuedCluster, kubelet: Kubelet):
    await cluster.open_shared(4, "a", "b")
    for job in ("a-first", "a-second"):
        await cluster.enqueue_counted(job, {"kueue.x-k8s.io/queue-name": "a"})
    await kubelet.until_running("a-first-0", "a-first-1", "a-second-0", "a-second-1")

    await cluster.enqueue_counted("b-first", {"kueue.x-k8s.io/queue-name": "b"})

    evicted = await cluster.api.until_any(cluster.jobs, has("Suspended", "True", "Evicted"))
    (kept,) = {"a-first", "a-second"} - {evicted["metadata"]["name"]}
    await kubelet.until_running("b-first-0", "b-first-1", f"{kept}-0", f"{kept}-1")


async def test_admission_check_holds_the_job_and_adds_to_its_pods(cluster: QueuedCluster, kubelet: Kubelet):
    check, checks = cluster.namespace, f"/apis/{GROUP}/{VERSION}/admissionchecks"
    head = {"apiVersion": f"{GROUP}/{VERSION}", "kind": "AdmissionCheck", "metadata": {"name": check}}
    await cluster.api.create(checks, {**head, "spec": {"controllerName": "example.com/test"}})
    active = {"status": {"conditions": [condition("Active", "True", "Active")]}}
    await cluster.api.patch(f"{checks}/{check}/status", active)
    await cluster.open(2, check=check)
    await cluster.enqueue_counted("job")
    asked = await cluster.queue.of("job", lambda found: bool(found.get("status", {}).get("admissionChecks")))
    path = f"{cluster.queue.folder}/{asked['metadata']['name']}/status"

    async def decide(state: str, **more: Any) -> None:
        decision = {"name": check, "state": state, "message": "", "lastTransitionTime": now(), **more}
        await cluster.api.patch(path, {"status": {"admissionChecks": [decision]}})

    await cluster.queue.of("job", says("QuotaReserved"))
    await cluster.until(has("PodsReady", "False"))
    assert not kubelet.pods
    update = {"name": "main", "labels": {"checked": "yes"}, "nodeSelector": {"kind": "checked"}}
    await decide("Ready", podSetUpdates=[update])
    pods = await kubelet.until_running("job-0", "job-1")
    assert {pod["metadata"]["labels"]["checked"] for pod in pods.values()} == {"yes"}
    assert all(pod["spec"]["nodeSelector"] == {"kind": "checked"} for pod in pods.values())

    await decide("Retry")
    await cluster.until(has("Suspended", "True"))
    await kubelet.until(lambda pods: not pods)
    assert (await cluster.job("job"))["status"]["restarts"]["total"] == 0


async def test_workload_that_another_controller_made_is_admitted_and_finished(
    cluster: QueuedCluster, kubelet: Kubelet
):
    await cluster.open(2)
    container = {"name": "trainer", "image": "a", "resources": {"requests": {"cpu": "1"}}}
    template = {"spec": {"containers": [container], "restartPolicy": "Never"}}
    spec = {"queueName": "gpus", "podSets": [{"name": "replicas", "count": 2, "template": template}]}
    head = {"apiVersion": f"{GROUP}/{VERSION}", "kind": "Workload", "metadata": {"name": "made"}}
    await cluster.api.create(cluster.queue.folder, {**head, "spec": spec})

    await cluster.enqueue_counted("job", {"kueue.x-k8s.io/prebuilt-workload-name": "made"})

    await kubelet.until_running("job-0", "job-1")
    for name in ("job-0", "job-1"):
        await kubelet.finish(name)
    await cluster.until(phase("Succeeded"))
    finished = await cluster.queue.of("job", says("Finished", "True", "Succeeded"))
    assert finished["metadata"]["name"] == "made"


async def test_pods_get_their_places_by_rank(
    cluster: QueuedCluster, kubelet: Kubelet, real_plane: ControlPlane
):
    await create_topology(cluster)
    nodes = [f"{cluster.namespace}-{index}" for index in range(4)]
    for index, node in enumerate(nodes):
        add_node(real_plane, node, cluster.namespace, f"rack-{index // 2}")
    await cluster.open(8, {"nodeLabels": {"test": cluster.namespace}, "topologyName": cluster.namespace})
    container = {"name": "trainer", "image": "trainer:1", "resources": {"requests": {"cpu": "1"}}}
    template = {
        "metadata": {"annotations": {"kueue.x-k8s.io/podset-required-topology": RACK}},
        "spec": {"containers": [container], "terminationGracePeriodSeconds": 1},
    }
    replace = {"scope": "Replica", "backoffSeconds": 0}
    await cluster.enqueue("job", replicas=4, template=template, recovery=replace)

    placed = await kubelet.until(
        lambda pods: len(pods) == 4 and not any(pod["spec"].get("schedulingGates") for pod in pods.values())
    )

    hosts = [placed[f"job-{rank}"]["spec"]["nodeSelector"][HOST] for rank in range(4)]
    assert hosts == sorted(hosts)
    assert set(hosts) in ({nodes[0], nodes[1]}, {nodes[2], nodes[3]})  # one rack
    await cluster.until(phase("Running"))

    def placed_again(pods: dict[str, Json]) -> bool:
        pod = pods.get("job-1", placed["job-1"])
        other = pod["metadata"]["uid"] != placed["job-1"]["metadata"]["uid"]
        return other and not pod["spec"].get("schedulingGates")

    await kubelet.finish("job-1", 1)
    pods = await kubelet.until(placed_again)
    assert pods["job-1"]["spec"]["nodeSelector"][HOST] == hosts[1]


@pytest.mark.parametrize("placed", [False, True], ids=["anywhere", "by Kueue"])
async def test_job_stays_admitted_while_the_pod_of_a_lost_node_is_replaced(
    cluster: QueuedCluster, kubelet: Kubelet, real_plane: ControlPlane, placed: bool
):
    """Where Kueue has chosen the nodes, it chooses another one of the rack."""
    kubelet.starts = False
    nodes = [f"{cluster.namespace}-{index}" for index in range(3)]
    for node in nodes:
        add_node(real_plane, node, cluster.namespace, "rack-0", capacity=1)
    flavor: Json = {"nodeLabels": {"test": cluster.namespace}}
    annotations = {}
    if placed:
        await create_topology(cluster)
        flavor["topologyName"] = cluster.namespace
        annotations["kueue.x-k8s.io/podset-required-topology"] = RACK
    await cluster.open(8, flavor)
    container = {"name": "trainer", "image": "trainer:1", "resources": {"requests": {"cpu": "1"}}}
    template = {"metadata": {"annotations": annotations}, "spec": {"containers": [container]}}
    recovery = {"scope": "Replica", "backoffSeconds": 0, "nodeLostSeconds": 1}
    await cluster.enqueue("job", template=template, recovery=recovery)

    def free(pods: dict[str, Json]) -> bool:
        return len(pods) == 2 and not any(pod["spec"].get("schedulingGates") for pod in pods.values())

    first = await kubelet.until(free)
    hosts = {
        name: pod["spec"]["nodeSelector"][HOST] if placed else nodes[int(name[-1])]
        for name, pod in first.items()
    }
    for name, host in hosts.items():
        await kubelet.start(name, node=host)
    admitted = await cluster.queue.of("job", says("PodsReady", "True", "Started"))
    kubelet.holds = {"job-1"}  # its kubelet will never report that it has stopped
    (spare,) = set(nodes) - set(hosts.values())

    lose_node(real_plane, hosts["job-1"])

    def elsewhere(pods: dict[str, Json]) -> bool:
        pod = pods.get("job-1", first["job-1"])
        other = pod["metadata"]["uid"] != first["job-1"]["metadata"]["uid"]
        chosen = pod["spec"].get("nodeSelector", {}).get(HOST)
        return other and not pod["spec"].get("schedulingGates") and chosen == (spare if placed else None)

    await kubelet.until(elsewhere)
    await kubelet.start("job-1", node=spare)
    recovered = await cluster.queue.of("job", says("PodsReady", "True", "Recovered"))
    assert recovered["metadata"]["uid"] == admitted["metadata"]["uid"]
    assert not any(says(kind)(recovered) for kind in ("Evicted", "Requeued"))
    running = await cluster.until(phase("Running"))
    assert running["status"]["failure"]["reason"] == "NodeLost"
    assert running["status"]["restarts"]["counted"] == 0
    assert kubelet.pods["job-0"]["metadata"]["uid"] == first["job-0"]["metadata"]["uid"]
