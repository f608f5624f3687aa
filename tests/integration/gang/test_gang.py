"""Jobs start whole: a real kube-scheduler places the pods of an attempt together."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from tests.integration import api as rest
from tests.integration import kubelet as kubelets
from tests.integration.controlplane import ControlPlane
from tests.integration.gang.conftest import GANG_API, POD_GROUPS, GangCluster, node, operated
from tests.integration.kubelet import Kubelet, runs
from tests.integration.operator.test_fence import refused_for_foreign
from tests.integration.operator.test_scope import fail_together
from tests.support.predicates import condition, phase

Json = dict[str, Any]
unschedulable = condition("PodsReady", "False", "Unschedulable")
PRIORITY_CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"
pytestmark = pytest.mark.xdist_group("gang")  # in one process, since their control plane is expensive


def group_of(pod: Json) -> str | None:
    """Return the name of the PodGroup that a pod belongs to."""
    group: str | None = (pod["spec"].get("schedulingGroup") or {}).get("podGroupName")
    return group


async def until_replaced(kubelet: Kubelet, old: Json) -> Json:
    """Wait until another pod of the same name runs, and return it."""
    name, uid = old["metadata"]["name"], old["metadata"]["uid"]

    def replaced(pods: dict[str, Json]) -> bool:
        return name in pods and runs(pods[name]) and pods[name]["metadata"]["uid"] != uid

    return (await kubelet.until(replaced))[name]


async def test_two_jobs_that_do_not_fit_together_run_one_after_the_other(
    cluster: GangCluster, kubelet: Kubelet
):
    await cluster.submit("a")
    await cluster.submit("b")

    def decided(pods: dict[str, Json]) -> bool:
        return len(pods) == 6 and sum("nodeName" in pod["spec"] for pod in pods.values()) == 3

    pods = await kubelet.until(decided)
    (first,) = {name[0] for name, pod in pods.items() if "nodeName" in pod["spec"]}
    second = {"a": "b", "b": "a"}[first]
    await cluster.until(phase("Running"), first)
    waiting = await cluster.until(
        lambda job: "the job's pods are scheduled only together" in job["status"].get("message", ""), second
    )
    assert condition("PodsReady", "False", "Unschedulable")(waiting)
    assert not any("nodeName" in kubelet.pods[f"{second}-{index}"]["spec"] for index in range(3))

    for index in range(3):
        await kubelet.finish(f"{first}-{index}")
    await cluster.until(phase("Succeeded"), first)
    await cluster.until(phase("Running"), second)


async def test_gang_that_can_never_fit_is_named(cluster: GangCluster):
    await cluster.submit(replicas=6)
    needs = "PodGroup job-0 needs capacity for 6 pods at once"
    waiting = await cluster.until(lambda job: needs in job["status"].get("message", ""))
    assert condition("PodsReady", "False", "Unschedulable")(waiting)
    assert "add or free the missing resources" in waiting["status"]["message"]
    await cluster.until_event("Unschedulable")


async def test_priority_class_that_does_not_exist_is_named(cluster: GangCluster):
    """The API server refuses the PodGroup already."""
    await cluster.submit(pod_spec={"priorityClassName": "urgent"})
    rejected = await cluster.until(condition("PodsReady", "False", "PodRejected"))
    said = "no PriorityClass with name urgent was found; create that class"
    assert said in rejected["status"]["message"]
    assert said in (await cluster.until_event("PodRejected"))["note"]


async def test_replica_is_replaced_after_another_one_has_finished(cluster: GangCluster, kubelet: Kubelet):
    """The scheduler does not count finished pods, so in the PodGroup the new pod would wait forever."""
    await cluster.submit(recovery={"scope": "Replica", "backoffSeconds": 0})
    first = await kubelet.until_running("job-0", "job-1", "job-2")
    assert {group_of(pod) for pod in first.values()} == {"job-0"}

    await kubelet.finish("job-0")
    await cluster.until(lambda job: job.get("status", {}).get("replicaStatuses", {}).get("succeeded") == 1)
    await kubelet.finish("job-1", 1)

    second = await until_replaced(kubelet, first["job-1"])
    assert group_of(second) is None


async def test_gang_is_preempted_as_a_whole_and_that_is_a_disruption(cluster: GangCluster, kubelet: Kubelet):
    """Another gang of higher priority needs the place of one pod; once it is gone, the job starts again."""
    low, urgent = f"low-{cluster.namespace}", f"urgent-{cluster.namespace}"
    for value, name in enumerate((low, urgent)):
        await cluster.api.create(PRIORITY_CLASSES, {"metadata": {"name": name}, "value": value})
    await cluster.submit(pod_spec={"priorityClassName": low}, recovery={"scope": "Replica"})
    await kubelet.until_running("job-0", "job-1", "job-2")
    await cluster.until(phase("Running"))  # a pod that is gone before all have started is simply recreated

    await cluster.submit("urgent", replicas=2, pod_spec={"priorityClassName": urgent})

    def whole_gang_waits(pods: dict[str, Json]) -> bool:
        mine = [pod for name, pod in pods.items() if name.startswith("job")]
        return len(mine) == 3 and not any("nodeName" in pod["spec"] for pod in mine)

    await kubelet.until(whole_gang_waits)
    waiting = await cluster.until(condition("PodsReady", "False", "Unschedulable"))
    assert waiting["status"]["restarts"]["disruptions"] >= 1

    await cluster.until(phase("Running"), "urgent")
    for index in range(2):
        await kubelet.finish(f"urgent-{index}")
    running = await cluster.until(phase("Running"))
    assert running["status"]["restarts"]["counted"] == 0


async def test_gang_that_may_not_preempt_waits_for_its_turn(cluster: GangCluster, kubelet: Kubelet):
    """Its priority is higher, but its class has preemptionPolicy: Never."""
    patient = f"patient-{cluster.namespace}"
    first = {"metadata": {"name": patient}, "value": 10, "preemptionPolicy": "Never"}
    await cluster.api.create(PRIORITY_CLASSES, first)
    await cluster.submit()
    running = await kubelet.until_running("job-0", "job-1", "job-2")

    await cluster.submit("patient", replicas=2, pod_spec={"priorityClassName": patient})
    await cluster.until(
        lambda job: unschedulable(job) and "due to preemptionPolicy=Never" in job["status"]["message"],
        "patient",
    )
    assert (await cluster.pod_groups())["patient-0"]["spec"]["priority"] == 10
    for index in range(2):
        placed_with = kubelet.pods[f"patient-{index}"]["spec"]
        assert (placed_with["priority"], placed_with["preemptionPolicy"]) == (10, "Never")
    for name, pod in running.items():
        assert kubelet.pods[name]["metadata"]["uid"] == pod["metadata"]["uid"]

    for index in range(3):
        await kubelet.finish(f"job-{index}")
    await cluster.until(phase("Running"), "patient")


async def test_scheduler_that_ignores_groups_is_named(plane_that_ignores_gangs: ControlPlane):
    """Nothing tells before it has placed a part of a gang."""
    async with operated(plane_that_ignores_gangs) as cluster:
        await cluster.submit(replicas=6)
        # It places one pod after the other, and the status may be written in between.
        placed = "4 of at least 6 pods that PodGroup job-0 needs have a node"
        waiting = await cluster.until(lambda job: placed in job.get("status", {}).get("message", ""))
        assert condition("PodsReady", "False", "GangsOff")(waiting)
        assert "feature gate GenericWorkload of kube-scheduler" in waiting["status"]["message"]
        await cluster.until_event("GangsOff")


async def test_groups_that_no_controller_manager_releases_are_named_if_they_are_in_the_way(
    plane_that_releases_no_groups: ControlPlane,
):
    async with (
        operated(plane_that_releases_no_groups) as cluster,
        kubelets.playing(cluster.api, cluster.namespace, places=False) as kubelet,
    ):
        await cluster.submit()
        await kubelet.until_running("job-0", "job-1", "job-2")
        await kubelet.finish("job-1", 1)
        await cluster.until(lambda job: phase("Running")(job) and job["status"].get("attempt") == 1)
        await cluster.api.delete(f"{cluster.jobs}/job")
        await cluster.api.until_gone(f"{cluster.jobs}/job")
        await kubelet.until(lambda pods: not pods)
        left = await cluster.pod_groups()
        assert "deletionTimestamp" in left["job-0"]["metadata"]

        await cluster.submit()
        waiting = await cluster.until(condition("PodsReady", "False", "GangsOff"))
        assert "PodGroup job-0 of a deleted job of this name still exists" in waiting["status"]["message"]
        await cluster.until_event("GangsOff")

        freed = {"metadata": {"finalizers": None}}
        await cluster.api.patch(f"{POD_GROUPS.format(cluster.namespace)}/job-0", freed)
        await cluster.until(phase("Running"))


POLICIES = "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolic{}"


@contextlib.asynccontextmanager
async def dropping(cluster: GangCluster, name: str) -> AsyncIterator[None]:
    """Drop the schedulingGroup of new pods of this name, as an API server does whose feature gate is off."""
    policy, binding = POLICIES.format("ies"), POLICIES.format("ybindings")
    own = {"metadata": {"name": f"drop-{cluster.namespace}"}}
    pods = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
    here = f"object.metadata.namespace == '{cluster.namespace}' && object.metadata.name == '{name}'"
    drop = "[JSONPatch{op: 'remove', path: '/spec/schedulingGroup'}]"
    spec = {
        "failurePolicy": "Fail",
        "reinvocationPolicy": "Never",
        "matchConstraints": {"resourceRules": [pods]},
        "matchConditions": [{"name": "named", "expression": f"{here} && has(object.spec.schedulingGroup)"}],
        "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression": drop}}],
    }
    await cluster.api.create(policy, own | {"spec": spec})
    await cluster.api.create(binding, own | {"spec": {"policyName": own["metadata"]["name"]}})
    try:
        pod = {"containers": [{"name": "a", "image": "a"}], "schedulingGroup": {"podGroupName": "b"}}
        probe = {"metadata": {"name": name}, "spec": pod}
        await until(lambda: cluster.api.call("POST", cluster.pods, probe, query={"dryRun": "All"}))
        yield
    finally:
        await cluster.api.delete(f"{binding}/{own['metadata']['name']}")
        await cluster.api.delete(f"{policy}/{own['metadata']['name']}")


async def until(create: Callable[[], Awaitable[Json]]) -> None:
    """Wait until the API server applies the policy: it reads new ones every second."""
    deadline = time.monotonic() + rest.WITHIN_S
    while group_of(await create()) is not None:
        assert time.monotonic() < deadline, "the API server does not apply the policy"
        await asyncio.sleep(0.2)  # before the next try


async def test_pods_are_placed_one_by_one_if_one_of_them_lost_its_group(
    cluster: GangCluster, kubelet: Kubelet
):
    """The scheduler would wait forever for the whole group."""
    async with dropping(cluster, "job-1"):
        await cluster.submit()
        pods = await kubelet.until_running("job-0", "job-1", "job-2")
        await cluster.until(phase("Running"))
    assert {group_of(pod) for pod in pods.values()} == {None}


async def test_stolen_token_cannot_touch_a_foreign_pod_group(cluster: GangCluster, gang_plane: ControlPlane):
    kind = {"apiVersion": GANG_API, "kind": "PodGroup", "metadata": {"name": "theirs"}}
    theirs = {**kind, "spec": {"schedulingPolicy": {"gang": {"minCount": 2}}}}
    async with rest.connect(gang_plane, "operator") as thief:
        await refused_for_foreign(thief, cluster.api, POD_GROUPS.format(cluster.namespace), theirs)


async def test_replica_is_replaced_in_the_group_of_the_others(cluster: GangCluster, kubelet: Kubelet):
    await cluster.submit(recovery={"scope": "Replica", "backoffSeconds": 0})
    first = await kubelet.until_running("job-0", "job-1", "job-2")

    await kubelet.finish("job-1", 1)

    assert group_of(await until_replaced(kubelet, first["job-1"])) == "job-0"


async def test_group_that_a_user_deletes_is_not_joined_again(cluster: GangCluster, kubelet: Kubelet):
    """The API server keeps it until its last pod has ended."""
    await cluster.submit(recovery={"scope": "Replica", "backoffSeconds": 0})
    first = await kubelet.until_running("job-0", "job-1", "job-2")

    cluster.operator.freeze()  # it sees both together
    await cluster.api.delete(f"{POD_GROUPS.format(cluster.namespace)}/job-0")
    await fail_together(cluster.operator, kubelet, 1, "job-1")

    assert group_of(await until_replaced(kubelet, first["job-1"])) is None


async def test_group_that_is_gone_while_its_pods_wait_is_created_again(
    cluster: GangCluster, kubelet: Kubelet
):
    """Someone removed its finalizer; without it the scheduler would leave the pods alone forever."""
    await cluster.submit("first")
    await cluster.until(phase("Running"), "first")
    await cluster.submit()
    await cluster.until(condition("PodsReady", "False", "Unschedulable"))
    path = f"{POD_GROUPS.format(cluster.namespace)}/job-0"
    old = await cluster.api.get(path)
    await cluster.api.delete(path)
    await cluster.api.patch(path, {"metadata": {"finalizers": None}})

    for index in range(3):
        await kubelet.finish(f"first-{index}")
    await cluster.until(phase("Running"))
    assert (await cluster.pod_groups())["job-0"]["metadata"]["uid"] != old["metadata"]["uid"]


async def test_restarted_and_resumed_jobs_have_a_group_per_attempt(cluster: GangCluster, kubelet: Kubelet):
    await cluster.submit()
    await kubelet.until_running("job-0", "job-1", "job-2")

    await kubelet.finish("job-1", 1)
    await cluster.until(lambda job: phase("Running")(job) and job["status"].get("attempt") == 1)
    assert {group_of(pod) for pod in kubelet.pods.values()} == {"job-1"}
    await cluster.api.until_gone(f"{POD_GROUPS.format(cluster.namespace)}/job-0")

    await cluster.change(suspend=True)
    await kubelet.until(lambda pods: not pods)
    await cluster.api.until_gone(f"{POD_GROUPS.format(cluster.namespace)}/job-1")
    await cluster.change(suspend=False)
    await kubelet.until_running("job-0", "job-1", "job-2")
    assert list(await cluster.pod_groups()) == ["job-2"]


async def test_elastic_job_starts_with_the_fewest_replicas(cluster: GangCluster, kubelet: Kubelet):
    await cluster.submit(replicas=6, elastic={"minReplicas": 2, "maxReplicas": 6})
    pods = await kubelet.until(lambda pods: sum("nodeName" in pod["spec"] for pod in pods.values()) == 4)
    assert {group_of(pod) for pod in pods.values()} == {"job-0"}
    groups = await cluster.pod_groups()
    assert groups["job-0"]["spec"]["schedulingPolicy"]["gang"]["minCount"] == 2


async def test_group_of_another_controller_is_left_alone(cluster: GangCluster, kubelet: Kubelet):
    folder = POD_GROUPS.format(cluster.namespace)
    spec = {"schedulingPolicy": {"gang": {"minCount": 2}}}
    await cluster.api.create(folder, {"kind": "PodGroup", "metadata": {"name": "job-0"}, "spec": spec})
    await cluster.submit()
    blocked = await cluster.until(condition("PodsReady", "False", "NameConflict"))
    assert "PodGroup job-0" in blocked["status"]["message"]
    assert not kubelet.pods


async def test_exclusive_jobs_get_a_rack_each(
    cluster: GangCluster, kubelet: Kubelet, gang_plane: ControlPlane
):
    """Both would fit into one rack; the node of the namespace is in none."""
    alone = {"topology": {"key": "rack", "mode": "Required", "exclusive": True}}
    name = cluster.namespace
    with (
        node(gang_plane, f"{name}-1", test=name, rack="r1"),
        node(gang_plane, f"{name}-2", test=name, rack="r2"),
    ):
        await cluster.submit("a", replicas=2, scheduling=alone)
        await cluster.submit("b", replicas=2, scheduling=alone)
        first = await cluster.until(phase("Running"), "a")
        second = await cluster.until(phase("Running"), "b")
        assert sorted(first["status"]["domains"] + second["status"]["domains"]) == ["r1", "r2"]

        await cluster.submit("c", replicas=2, scheduling=alone)
        await cluster.until(
            lambda job: unschedulable(job) and "anti-affinity" in job["status"].get("message", ""), "c"
        )

        for index in range(2):
            await kubelet.finish(f"a-{index}")
        third = await cluster.until(phase("Running"), "c")
        assert third["status"]["domains"] == first["status"]["domains"]


async def test_job_gets_the_rack_that_has_capacity_for_all_of_it(
    cluster: GangCluster, kubelet: Kubelet, gang_plane: ControlPlane
):
    """The first pod alone would choose the other rack, and the others could not follow."""
    name = cluster.namespace
    liked = {"key": "liked", "operator": "In", "values": ["yes"]}
    near = {"weight": 100, "preference": {"matchExpressions": [liked]}}
    affinity = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [near]}}
    with (
        node(gang_plane, f"{name}-1", fit=2, test=name, rack="small", liked="yes"),
        node(gang_plane, f"{name}-2", test=name, rack="large"),
    ):
        rack = {"topology": {"key": "rack", "mode": "Required"}}
        await cluster.submit(scheduling=rack, pod_spec={"affinity": affinity})
        running = await cluster.until(phase("Running"))
        assert running["status"]["domains"] == ["large"]


async def test_label_that_no_node_has_is_named(cluster: GangCluster):
    await cluster.submit(scheduling={"topology": {"key": "no-such-label", "mode": "Required"}})
    waiting = await cluster.until(condition("PodsReady", "False", "UnknownTopology"))
    assert "no node has the label no-such-label" in waiting["status"]["message"]
    await cluster.until_event("UnknownTopology")
