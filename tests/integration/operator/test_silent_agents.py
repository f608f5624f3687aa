"""Silent agents: if the Lease of the node expires too, the node is lost; otherwise the pod is isolated."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.integration.api import LEASES, WITHIN_S, Api
from tests.integration.controlplane import ControlPlane
from tests.integration.kubelet import Kubelet, now
from tests.integration.operator import process
from tests.integration.operator.conftest import Cluster, without
from tests.integration.operator.process import Kept
from tests.integration.operator.test_nodes import Nodes, avoids, nodes
from tests.integration.operator.test_scope import ADDRESS, HEALING, agent, recovered, uids
from tests.support.ports import own_address
from tests.support.predicates import phase

__all__ = ["nodes"]
Json = dict[str, Any]
FOLDER = LEASES.format("kube-node-lease")
# 40 by default. The operator treats a Lease as dead if it did not change for 3/8 of its duration, and forgets
# what it read more than 12 s ago. With these values, no pause of the machine makes a live kubelet look dead.
EXPIRES_S = 32
SOON_S = 2
POLL_S = 2.0
SILENT = [{"replica": 1, "seconds": 20.5}]
CALM: Json = {"attempt": 0, "step": 7, "rejoin": True, "missing": []}


@pytest.fixture
async def asking(granted: ControlPlane, namespace: str, witness: object) -> AsyncIterator[Kept]:
    """Return an operator that polls agents often."""
    async with process.kept(granted, watch=namespace, poll_s=POLL_S) as operator:
        yield operator


@contextlib.asynccontextmanager
async def renewing(
    api: Api, node: str, *, skew_s: float = 0, expires_s: int = EXPIRES_S
) -> AsyncIterator[None]:
    """Renew the Lease of a node until the end, as its kubelet, with a clock that is off by this much."""
    path = f"{FOLDER}/{node}"

    async def renew() -> None:
        moment = datetime.now(UTC) + timedelta(seconds=skew_s)
        await api.patch(path, {"spec": {"renewTime": moment.isoformat(timespec="microseconds")}})

    async def keep() -> None:
        while True:
            await asyncio.sleep(0.5)  # between two renewals
            await renew()

    if all(lease["metadata"]["name"] != node for lease in await api.items(FOLDER)):
        spec = {"holderIdentity": node, "leaseDurationSeconds": expires_s}
        await api.create(FOLDER, {"metadata": {"name": node}, "spec": spec})
    await renew()
    task = asyncio.create_task(keep())
    try:
        yield
        assert not task.done(), "the simulated kubelet ended too early"
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def last_sign_of_life(api: Api, *nodes: str) -> None:
    """Renew the Leases of these nodes once, and not again."""
    for node in nodes:
        async with renewing(api, node, expires_s=SOON_S):
            pass


@pytest.fixture
async def leases(api: Api) -> AsyncIterator[None]:
    """Remove what `renewing` leaves behind: a Lease that is no longer renewed."""
    yield
    for lease in await api.items(FOLDER):
        await api.delete(f"{FOLDER}/{lease['metadata']['name']}")


async def train(
    cluster: Cluster, kubelet: Kubelet, address: str, *, replicas: int = 2, **recovery: Any
) -> dict[str, str]:
    """Start a job whose agent at this address has answered; its pods do not start or stop by themselves."""
    kubelet.starts = False
    await cluster.submit(replicas=replicas, recovery={**HEALING, "maxRestarts": 0, **recovery})
    names = [f"job-{index}" for index in range(replicas)]
    await kubelet.until(lambda pods: set(pods) == set(names))
    for name in reversed(names):
        await kubelet.start(name)
    await kubelet.set_status("job-0", {"podIP": address, "podIPs": [{"ip": address}]})
    await cluster.until(lambda job: phase("Running")(job) and "progress" in job["status"])
    kubelet.holds = set(names)  # a dead kubelet never reports that a pod has stopped
    return uids(kubelet.pods)


def is_new(name: str, before: dict[str, str]) -> Callable[[dict[str, Json]], bool]:
    """Return a predicate: another pod has taken the name."""
    return lambda pods: uids(pods).get(name, before[name]) != before[name]


async def looks(plane: ControlPlane, node: str, count: int) -> None:
    """Wait until the operator has read the Lease of a node `count` more times."""
    deadline = time.monotonic() + WITHIN_S
    _, end = plane.audit_from(0)
    while count > 0:
        assert time.monotonic() < deadline, (
            f"the operator does not read the lease of {node}: {count} reads are missing"
        )
        await asyncio.sleep(0.1)  # before the log is read again
        lines, end = plane.audit_from(end)
        count -= sum(line["requestURI"] == f"{FOLDER}/{node}" for line in lines)


@pytest.mark.usefixtures("asking", "leases", "nodes")
@pytest.mark.parametrize("skew_s", [pytest.param(0, id="good clock"), pytest.param(-3600, id="an hour late")])
@pytest.mark.long(42)
async def test_silent_node_is_lost_when_its_lease_expires_and_not_before(
    granted: ControlPlane, cluster: Cluster, kubelet: Kubelet, skew_s: float
):
    async with agent(cluster, ADDRESS, dict(CALM)) as says:
        async with renewing(cluster.api, "node-1", skew_s=skew_s):
            before = await train(cluster, kubelet, ADDRESS)
            says["missing"] = SILENT
            await looks(granted, "node-1", 3)
            assert uids(kubelet.pods) == before, "its kubelet is alive"
            assert not (await cluster.job())["status"]["restarts"]["total"]

        pods = await kubelet.until(is_new("job-1", before), within_s=EXPIRES_S + WITHIN_S)
        assert avoids(pods["job-1"]) == ["node-1"], "the scheduler does not know that the node is lost"
        async with renewing(cluster.api, "node-1"):  # the node is back
            says["missing"] = []
            await kubelet.start("job-1", placed_at=now())
            job = await cluster.until(recovered(0, disruptions=1))

        failure = job["status"]["failure"]
        assert (failure["reason"], failure["node"], failure["replica"]) == ("NodeLost", "node-1", 1)
        assert failure["message"].startswith("the agent is silent and the node's Lease expired ")
        assert uids(kubelet.pods)["job-0"] == before["job-0"]


@pytest.mark.usefixtures("asking", "leases", "nodes")
async def test_dead_kubelet_does_not_matter_while_the_agent_is_alive(cluster: Cluster, kubelet: Kubelet):
    async with agent(cluster, ADDRESS, dict(CALM)) as says:
        before = await train(cluster, kubelet, ADDRESS, replicas=3)
        await last_sign_of_life(cluster.api, "node-1", "node-2")
        says["missing"] = [{"replica": 2, "seconds": 20.5}]
        await kubelet.until(is_new("job-2", before))
        assert uids(kubelet.pods)["job-1"] == before["job-1"]


@pytest.mark.usefixtures("asking", "leases", "nodes")
@pytest.mark.parametrize("scope", ["Replica", "Job"])
async def test_node_of_replica_0_is_lost_when_its_agent_stops_answering(
    cluster: Cluster, kubelet: Kubelet, scope: str
):
    async with agent(cluster, ADDRESS, dict(CALM)):
        before = await train(cluster, kubelet, ADDRESS, scope=scope)
        await last_sign_of_life(cluster.api, "node-0")
        kubelet.holds = {"job-0"}

    pods = await kubelet.until(lambda pods: len(pods) == 2 and is_new("job-0", before)(pods))
    assert avoids(pods["job-0"]) == ["node-0"]
    assert (uids(pods)["job-1"] == before["job-1"]) is (scope == "Replica")
    failure = (await cluster.job())["status"]["failure"]
    assert (failure["reason"], failure["node"], failure["replica"]) == ("NodeLost", "node-0", 0)


@pytest.mark.usefixtures("leases", "nodes", "witness")
async def test_node_lost_together_with_the_leader_is_lost_for_the_next_leader(
    granted: ControlPlane, cluster: Cluster, kubelet: Kubelet
):
    async with agent(cluster, ADDRESS, dict(CALM)):
        async with process.kept(granted, watch=cluster.namespace, poll_s=POLL_S):
            before = await train(cluster, kubelet, ADDRESS, scope="Auto")
            await cluster.until(lambda job: job["status"].get("memory", {}).get("rejoins"))
        await last_sign_of_life(cluster.api, "node-0")
    async with process.kept(granted, watch=cluster.namespace, poll_s=POLL_S):
        await kubelet.until(is_new("job-0", before))
    assert uids(kubelet.pods)["job-1"] == before["job-1"]


@pytest.mark.usefixtures("impatient", "nodes")
async def test_isolated_pod_on_a_healthy_node_is_replaced(cluster: Cluster, kubelet: Kubelet):
    async with agent(cluster, ADDRESS, dict(CALM)) as says:
        before = await train(cluster, kubelet, ADDRESS, maxRestarts=1)
        kubelet.holds = set()
        says["missing"] = [{"replica": 1, "seconds": 2.5}]
        await kubelet.until(is_new("job-1", before))
        says["missing"] = []
        await kubelet.start("job-1", placed_at=now())

        job = await cluster.until(recovered(1))
    assert job["status"]["failure"]["reason"] == "PeerLost"
    assert "no heartbeat from its agent for " in job["status"]["failure"]["message"]
    assert uids(kubelet.pods)["job-0"] == before["job-0"]


@pytest.mark.usefixtures("impatient", "nodes")
async def test_replica_0_is_replaced_if_the_other_agent_does_not_hear_it_either(
    cluster: Cluster, kubelet: Kubelet
):
    second = own_address(1)
    async with agent(cluster, ADDRESS, dict(CALM)) as says, agent(cluster, second, dict(CALM)) as other_says:
        before = await train(cluster, kubelet, ADDRESS, maxRestarts=1)
        await kubelet.set_status("job-1", {"podIP": second, "podIPs": [{"ip": second}]})
        other_says |= {"replica": 1, "unheardSeconds": 2.5}
        says["replica"] = 7  # not an answer of replica 0
        kubelet.holds = {"job-1"}
        await kubelet.until(is_new("job-0", before))
        says["replica"] = 0
        await kubelet.start("job-0", placed_at=now())
        await kubelet.set_status("job-0", {"podIP": ADDRESS, "podIPs": [{"ip": ADDRESS}]})
        job = await cluster.until(recovered(1))

    failure = job["status"]["failure"]
    assert failure["reason"] == "PeerLost"
    assert "neither the operator nor other agents have heard its agent for " in failure["message"]
    assert uids(kubelet.pods)["job-1"] == before["job-1"]


@pytest.mark.usefixtures("leases", "nodes")
async def test_without_the_right_to_read_leases_the_operator_waits_for_kubernetes(
    granted: ControlPlane, cluster: Cluster, kubelet: Kubelet, nodes: Nodes
):
    name = f"dtj-operator-{process.NAMESPACE}-nodes"
    bindings = "/apis/rbac.authorization.k8s.io/v1/namespaces/kube-node-lease/rolebindings"
    await last_sign_of_life(cluster.api, "node-1")
    async with (
        without(granted, f"{bindings}/{name}", f"{FOLDER}/node-1"),
        process.kept(granted, watch=cluster.namespace, poll_s=POLL_S),
        agent(cluster, ADDRESS, dict(CALM)) as says,
    ):
        before = await train(cluster, kubelet, ADDRESS, nodeLostSeconds=1)
        says["missing"] = SILENT
        await looks(granted, "node-1", 1)
        await nodes.say("node-1", ready=False)
        await kubelet.until(is_new("job-1", before))
        job = await cluster.job()
    assert job["status"]["failure"]["message"] == "the node was NotReady for 1 s"
