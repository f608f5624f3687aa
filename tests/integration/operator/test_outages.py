"""Outages of the API server or etcd: killed, frozen, history compacted, the operator's rights removed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.chaos.witness import Witness
from tests.integration.api import LEASES
from tests.integration.controlplane import ControlPlane
from tests.integration.kubelet import Kubelet
from tests.integration.operator import process
from tests.integration.operator.conftest import Cluster, without
from tests.integration.operator.process import LEASE, LEASE_NAMESPACE, Kept
from tests.support.faultproxy import FaultProxy
from tests.support.predicates import phase

Json = dict[str, Any]
Outage = Callable[[ControlPlane], Awaitable[None]]
BINDING = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/dtj-operator-dtj-system"


async def restart_apiserver(plane: ControlPlane) -> None:
    """Kill it; its clients cannot connect for some seconds."""
    await asyncio.to_thread(plane.restart, plane.apiserver)


async def restart_etcd(plane: ControlPlane) -> None:
    """Kill it; the API server returns errors until it is back."""
    await asyncio.to_thread(plane.restart, plane.etcd)


async def hang(plane: ControlPlane) -> None:
    """Freeze the API server: it accepts requests and answers none for longer than their timeout."""
    plane.apiserver.freeze()
    try:
        await asyncio.sleep(11)
    finally:
        plane.apiserver.thaw()


@pytest.mark.parametrize(
    "outage",
    [
        pytest.param(restart_apiserver, id="API server restarted"),
        pytest.param(restart_etcd, id="etcd restarted"),
        pytest.param(hang, id="API server hangs"),
    ],
)
async def test_outage_in_the_middle_of_everything(
    granted: ControlPlane,
    cluster: Cluster,
    kubelet: Kubelet,
    witness: Witness,
    operator: Kept,
    outage: Outage,
):
    await cluster.submit("running")
    await cluster.until(phase("Running"), "running")
    await cluster.submit("crashed")
    await cluster.until(phase("Running"), "crashed")
    kubelet.holds = {"crashed-0"}
    for number in range(6):
        await cluster.submit(f"started-{number}", replicas=5)
    await kubelet.finish("crashed-1", 1)

    await outage(granted)

    await kubelet.release("crashed-0")
    await witness.settled()
    jobs = {job["metadata"]["name"]: job["status"] for job in await cluster.api.items(cluster.jobs)}
    assert (jobs["crashed"]["attempt"], jobs["crashed"]["restarts"]["counted"]) == (1, 1)
    assert all(status["restarts"]["total"] == 0 for name, status in jobs.items() if name != "crashed")


async def test_compacted_history_leads_to_a_new_list(
    granted: ControlPlane, cluster: Cluster, kubelet: Kubelet, witness: Witness
):
    # On a busy machine it is frozen for so long that it loses its Lease, and ends: then it is started again.
    async with process.kept(granted, watch=cluster.namespace) as operator:
        for name in ("kept", "deleted", "crashed"):
            await cluster.submit(name)
            await cluster.until(phase("Running"), name)

        operator.freeze()  # it misses the following events
        await cluster.api.delete(f"{cluster.jobs}/deleted")
        await cluster.submit("new")
        await kubelet.finish("crashed-1", 1)
        await asyncio.to_thread(granted.compact)
        await restart_apiserver(granted)  # the API server had the history in memory too
        operator.thaw()

        await cluster.until(phase("Running"), "new")
        await cluster.until(lambda job: phase("Running")(job) and job["status"]["attempt"] == 1, "crashed")
        await witness.settled()


async def test_operator_works_without_the_right_to_read_nodes(
    granted: ControlPlane, cluster: Cluster, kubelet: Kubelet, witness: Witness
):
    binding = f"{BINDING}-nodes"  # what the chart leaves out with rbac.readNodes=false
    async with (
        without(granted, binding, "/api/v1/nodes"),
        process.running(granted, watch=cluster.namespace) as operator,
    ):
        await cluster.submit()
        await cluster.until(phase("Running"))
        await kubelet.finish("job-1", 1)
        await cluster.until(lambda job: phase("Running")(job) and job["status"]["attempt"] == 1)
        lines = [line for line in operator.log.read_text().splitlines() if "what=nodes" in line]
    assert len(lines) == 1
    assert "no permission to read these objects; continuing without them" in lines[0]


async def test_rights_are_removed_and_restored(
    granted: ControlPlane, cluster: Cluster, kubelet: Kubelet, witness: Witness
):
    async with (
        FaultProxy(granted.url, granted.tls()).serving() as proxy,
        process.kept(granted, watch=cluster.namespace, server=proxy.url),
    ):
        await cluster.submit("before")
        await cluster.until(phase("Running"), "before")
        async with without(granted, BINDING, cluster.pods):
            proxy.cut_watches()
            await cluster.submit("meanwhile")
            await kubelet.finish("before-1", 1)
            # Another role grants the lease, so it is still renewed.
            renewed = f"{LEASES.format(LEASE_NAMESPACE)}/{LEASE}"
            lease = await cluster.api.get(renewed)
            await cluster.api.until(renewed, lambda seen: seen["spec"] != lease["spec"])
            assert witness.births == 2

        await cluster.until(phase("Running"), "meanwhile")
        await cluster.until(lambda job: phase("Running")(job) and job["status"]["attempt"] == 1, "before")
        await witness.settled()
