"""Lost nodes: their pods are force-deleted and replaced, and nodes with repeated faults are avoided."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.integration.kubelet import Kubelet, now
from tests.integration.operator.conftest import Cluster
from tests.integration.operator.process import Kept
from tests.integration.operator.test_elastic import find_no_room, is_second
from tests.integration.operator.test_scope import HEALING, recovered, uids
from tests.support.predicates import phase

pytestmark = pytest.mark.usefixtures("operator")
Json = dict[str, Any]
NODES = "/api/v1/nodes"
SOON = {"nodeLostSeconds": 1}


class Nodes:
    """The nodes of the test: objects only, nothing runs on them."""

    def __init__(self, cluster: Cluster) -> None:
        self._api = cluster.api

    async def add(self, *names: str) -> None:
        for name in names:
            await self._api.create(NODES, {"metadata": {"name": name}})
            await self.say(name, ready=True)

    async def say(self, name: str, *, ready: bool) -> None:
        """Set whether the node is ready."""
        condition = {"type": "Ready", "status": "True" if ready else "Unknown", "lastTransitionTime": now()}
        await self._api.patch(f"{NODES}/{name}/status", {"status": {"conditions": [condition]}})

    async def remove_all(self) -> None:
        for node in await self._api.items(NODES):
            await self._api.delete(f"{NODES}/{node['metadata']['name']}")


@pytest.fixture
async def nodes(cluster: Cluster) -> AsyncIterator[Nodes]:
    """Return three ready nodes, on which the kubelet places the pods of the same index."""
    made = Nodes(cluster)
    await made.add("node-0", "node-1", "node-2")
    try:
        yield made
    finally:
        await made.remove_all()


async def test_pod_on_a_lost_node_is_replaced_although_its_kubelet_is_dead(
    cluster: Cluster, kubelet: Kubelet, nodes: Nodes
):
    await cluster.submit(replicas=3, recovery={**HEALING, **SOON, "maxRestarts": 0})
    before = uids(await kubelet.until_running("job-0", "job-1", "job-2"))
    await cluster.until(phase("Running"))
    kubelet.holds = {"job-1"}  # its kubelet will never report that it has stopped
    kubelet.starts = False

    await nodes.say("node-1", ready=False)
    await kubelet.until(lambda pods: uids(pods).get("job-1", before["job-1"]) != before["job-1"])
    await kubelet.start("job-1", node="node-2")

    job = await cluster.until(recovered(0, disruptions=1))
    after = uids(kubelet.pods)
    assert {name for name in after if after[name] != before[name]} == {"job-1"}
    assert job["status"]["failure"]["reason"] == "NodeLost"
    assert job["status"]["failure"]["node"] == "node-1"


async def test_lost_node_does_not_delay_a_new_attempt(cluster: Cluster, kubelet: Kubelet, nodes: Nodes):
    await cluster.submit(recovery={**SOON, "scope": "Job", "backoffSeconds": 0})
    await kubelet.until_running("job-0", "job-1")
    await cluster.until(phase("Running"))
    kubelet.holds = {"job-1"}
    kubelet.starts = False
    await kubelet.finish("job-0", 76)  # it lost its peer long before the cause is known
    await kubelet.until(lambda pods: "deletionTimestamp" in pods["job-1"]["metadata"])

    await nodes.say("node-1", ready=False)
    await kubelet.until(lambda pods: set(pods) == {"job-0", "job-1"} and all(map(is_second, pods.values())))
    await kubelet.start("job-0")
    await kubelet.start("job-1", node="node-2")

    await cluster.until(lambda job: phase("Running")(job) and job["status"]["attempt"] == 1)


async def test_node_is_not_lost_before_the_timeout_or_if_that_is_disabled(
    cluster: Cluster, kubelet: Kubelet, nodes: Nodes
):
    await cluster.submit("patient", recovery={**HEALING, "nodeLostSeconds": 3600})
    await cluster.submit("never", recovery={**HEALING, "nodeLostSeconds": "Never"})
    await cluster.submit("quick", recovery={**HEALING, "nodeLostSeconds": 1})
    names = [f"{job}-{index}" for job in ("patient", "never", "quick") for index in (0, 1)]
    before = uids(await kubelet.until_running(*names))
    for job in ("patient", "never", "quick"):
        await cluster.until(phase("Running"), job)

    kubelet.starts = False
    await nodes.say("node-1", ready=False)
    # The timeout passes without any further event.
    await kubelet.until(lambda pods: uids(pods).get("quick-1", before["quick-1"]) != before["quick-1"])
    await kubelet.start("quick-1", node="node-2")

    await cluster.until(recovered(0, disruptions=1), "quick")
    after = uids(await kubelet.until_running(*names))
    assert {name for name in after if after[name] != before[name]} == {"quick-1"}


async def test_no_node_is_lost_if_none_is_ready(
    cluster: Cluster, kubelet: Kubelet, nodes: Nodes, operator: Kept
):
    await cluster.submit("job", recovery={**HEALING, **SOON})
    before = uids(await kubelet.until_running("job-0", "job-1"))
    await cluster.until(phase("Running"))

    operator.freeze()  # it sees all of them at once
    for name in ("node-2", "node-0", "node-1"):
        await nodes.say(name, ready=False)
    operator.thaw()
    # Another job starts and ends meanwhile, after more than `nodeLostSeconds`.
    await cluster.submit("other", replicas=1, activeDeadlineSeconds=2)
    await cluster.until(phase("Failed"), "other")

    assert uids(kubelet.pods).items() >= before.items()


@pytest.mark.parametrize("way", ["suspended", "deleted"])
async def test_terminating_pods_on_a_lost_node_are_force_deleted(
    cluster: Cluster, kubelet: Kubelet, nodes: Nodes, way: str
):
    await cluster.submit(recovery=SOON)
    await kubelet.until_running("job-0", "job-1")
    kubelet.holds = {"job-1"}
    if way == "suspended":
        await cluster.change(suspend=True)
    else:
        await cluster.api.delete(f"{cluster.jobs}/job")
    await kubelet.until(lambda pods: set(pods) == {"job-1"})

    await nodes.say("node-1", ready=False)

    await kubelet.until(lambda pods: not pods)


def avoids(pod: Json) -> list[str]:
    """Return the nodes on which a pod must not be placed."""
    required = (
        pod["spec"]
        .get("affinity", {})
        .get("nodeAffinity", {})
        .get("requiredDuringSchedulingIgnoredDuringExecution", {})
    )
    terms = required.get("nodeSelectorTerms", [])
    return [field["values"][0] for term in terms for field in term.get("matchFields", ())]


async def test_node_with_two_faults_is_avoided_until_nothing_fits(
    cluster: Cluster, kubelet: Kubelet, nodes: Nodes
):
    await cluster.submit(recovery={**HEALING, "avoidNodeWaitSeconds": 1})
    for number in (1, 2):
        await cluster.until(recovered(number - 1))
        await kubelet.until_running("job-0", "job-1")
        assert avoids(kubelet.pods["job-1"]) == []
        kubelet.starts = number == 1
        await kubelet.finish("job-1", 139)

    pods = await kubelet.until(
        lambda pods: (
            "job-1" in pods and "nodeName" not in pods["job-1"]["spec"] and avoids(pods["job-1"]) != []
        )
    )
    assert avoids(pods["job-1"]) == ["node-1"]
    (entry,) = (await cluster.job())["status"]["avoidedNodes"]
    assert (entry["node"], entry["faults"], entry["until"] > entry["at"]) == ("node-1", 2, True)

    await find_no_room(kubelet, "job-1")

    await kubelet.until(lambda pods: "job-1" in pods and avoids(pods["job-1"]) == [])
    await kubelet.start("job-1")
    job = await cluster.until(recovered(2))
    (entry,) = job["status"]["avoidedNodes"]
    assert (entry["node"], entry["faults"], entry["preferred"]) == ("node-1", 2, True)
    (preference,) = kubelet.pods["job-1"]["spec"]["affinity"]["nodeAffinity"][
        "preferredDuringSchedulingIgnoredDuringExecution"
    ]
    assert preference["preference"]["matchFields"][0]["values"] == ["node-1"]
    assert "only prefers other nodes" in (await cluster.until_event("NodesAllowed"))["note"]
