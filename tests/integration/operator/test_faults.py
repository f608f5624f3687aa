"""Faults between operator and API server: late, lost or refused answers, and cut watches."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator

import pytest

from tests.chaos.witness import Witness
from tests.integration.api import PODS, POLICIES, SERVICES, WITHIN_S
from tests.integration.controlplane import ControlPlane
from tests.integration.kubelet import Kubelet
from tests.integration.operator import process
from tests.integration.operator.conftest import Cluster
from tests.support.faultproxy import Fault, FaultProxy, calling, is_watch, losing, watching
from tests.support.predicates import condition, phase


@pytest.fixture
async def proxy(granted: ControlPlane, namespace: str, witness: Witness) -> AsyncIterator[FaultProxy]:
    """Return a proxy between the API server and the only operator of the test's namespace."""
    async with (
        FaultProxy(granted.url, granted.tls()).serving() as proxy,
        process.kept(granted, watch=namespace, server=proxy.url),
    ):
        yield proxy


BUSY = ("Retry-After", "1")
FAULTS = [
    ("a busy server refuses pods", 429, Fault(calling("POST", "pods"), 429, times=2, headers=(BUSY,))),
    ("a broken server refuses pods", 500, Fault(calling("POST", "pods"), 500, times=2)),
    ("a broken server refuses the Service", 500, Fault(calling("POST", "services"), 500, times=2)),
    ("a broken server hides the job", 500, Fault(calling("GET", "distributedtrainingjobs"), 500, times=2)),
    ("a broken server refuses the status", 503, Fault(calling("PATCH", "status"), 503, times=2)),
    ("a created pod is not confirmed", 0, Fault(calling("POST", "pods"), 0, times=2)),
    ("the Service is not confirmed", 0, Fault(calling("POST", "services"), 0)),
    ("the status is not confirmed", 0, Fault(calling("PATCH", "status"), 0, times=2)),
    ("another client changed the status", 409, Fault(calling("PATCH", "status"), 409, times=2)),
]


@pytest.mark.parametrize(("kind", "fault"), [pytest.param(*row[1:], id=row[0]) for row in FAULTS])
async def test_job_runs_despite(
    cluster: Cluster, kubelet: Kubelet, proxy: FaultProxy, kind: int, fault: Fault
):
    proxy.inject(fault)
    await cluster.submit()

    job = await cluster.until(phase("Running"))
    for name in ("job-0", "job-1"):
        await kubelet.finish(name)
    await cluster.until(phase("Succeeded"))

    assert proxy.hits[kind] >= 1, "the fault was injected"
    assert [name for name, _ in sorted(kubelet.born)] == ["job-0", "job-1"], "each pod was created once"
    assert job["status"]["restarts"]["total"] == 0


async def test_restart_with_an_unconfirmed_status_write_counts_once(
    cluster: Cluster, kubelet: Kubelet, proxy: FaultProxy
):
    await cluster.submit()
    await cluster.until(phase("Running"))
    proxy.inject(Fault(calling("PATCH", "status"), 0, times=2))

    await kubelet.finish("job-1", 1)

    job = await cluster.until(lambda job: phase("Running")(job) and job["status"]["attempt"] >= 1)
    assert (job["status"]["attempt"], job["status"]["restarts"]["counted"]) == (1, 1)
    assert proxy.hits[0] == 2


async def test_failed_pod_is_replaced_while_a_change_of_the_policy_is_refused(
    cluster: Cluster, kubelet: Kubelet, proxy: FaultProxy
):
    await cluster.submit()
    await cluster.until(phase("Running"))
    policy = f"{POLICIES.format(cluster.namespace)}/job"
    wanted = (await cluster.api.get(policy))["spec"]
    proxy.inject(Fault(calling("POST", "networkpolicies"), 403, times=10**6))
    await cluster.api.patch(policy, {"spec": {"ingress": [{}]}})
    await cluster.until(condition("PodsReady", "False", "PodRejected"))

    await kubelet.finish("job-1", 1)
    await cluster.until(lambda job: phase("Running")(job) and job["status"]["attempt"] == 1)

    proxy.clear()
    await cluster.api.until(policy, lambda seen: seen["spec"] == wanted)


async def test_unconfirmed_deletion_does_not_hit_a_newer_pod(
    cluster: Cluster, kubelet: Kubelet, proxy: FaultProxy
):
    await cluster.submit()
    await cluster.until(phase("Running"))
    proxy.inject(Fault(calling("DELETE", "pods"), 0, times=4))

    await kubelet.finish("job-1", 1)

    await cluster.until(lambda job: phase("Running")(job) and job["status"]["attempt"] >= 1)
    await kubelet.until_running("job-0", "job-1")
    assert len(kubelet.born) == 4, "two attempts of two pods"


async def test_changes_while_watches_are_cut_are_noticed(
    cluster: Cluster, kubelet: Kubelet, proxy: FaultProxy
):
    await cluster.submit()
    await cluster.until(phase("Running"))
    # No watch gets through, so no event reports the deletion and the crash ...
    closed = Fault(lambda request: request.query.get("watch") == "true", 503, times=3)
    proxy.inject(closed)
    assert proxy.cut_watches() >= 2, "one watch of pods, one of jobs"
    await cluster.api.delete(f"{PODS.format(cluster.namespace)}/job-1")

    # ... and the operator finds both anyway.
    job = await cluster.until(lambda job: phase("Running")(job) and job["status"]["attempt"] == 1)
    assert job["status"]["restarts"]["disruptions"] == 1
    assert closed.times < 3


@pytest.mark.parametrize("resource", ["pods", "distributedtrainingjobs"])
async def test_expired_history_leads_to_a_new_list(
    cluster: Cluster, kubelet: Kubelet, proxy: FaultProxy, resource: str
):
    await cluster.submit()
    await cluster.until(phase("Running"))
    proxy.inject(Fault(watching(resource), 410, times=1))
    proxy.cut_watches()

    await cluster.submit("other")
    await kubelet.finish("job-1", 1)

    await cluster.until(phase("Running"), "other")
    await cluster.until(lambda job: phase("Running")(job) and job["status"]["attempt"] == 1)
    assert proxy.hits[410] == 1


async def test_unavailable_server_is_waited_for(cluster: Cluster, kubelet: Kubelet, proxy: FaultProxy):
    await cluster.submit()
    await cluster.until(phase("Running"))
    proxy.inject(Fault(lambda request: "leases" not in request.path, 503, times=12))
    proxy.cut_watches()

    await cluster.submit("other")
    await cluster.api.delete(f"{cluster.jobs}/job")

    await cluster.until(phase("Running"), "other")
    await kubelet.until_running("other-0", "other-1")
    await cluster.api.until_gone(f"{SERVICES.format(cluster.namespace)}/job")
    assert proxy.hits[503] == 12


async def test_slow_server_is_waited_for(cluster: Cluster, kubelet: Kubelet, proxy: FaultProxy):
    """Slower than the lease's renewal period, but faster than the timeouts."""
    slow = Fault(lambda request: not is_watch(request), 0, times=10**6, late_s=2.5)
    await cluster.submit("before")
    await cluster.until(phase("Running"), "before")
    proxy.inject(slow)

    await cluster.submit()
    await cluster.until(phase("Running"))
    slow.times = 0
    for name in ("job-0", "job-1"):
        await kubelet.finish(name)
    await cluster.until(phase("Succeeded"))

    assert proxy.hits["late"] >= 6, "the job, the Service, the policy, two pods, a status"


async def test_storm_of_expired_watches_passes(cluster: Cluster, kubelet: Kubelet, proxy: FaultProxy):
    await cluster.submit()
    await cluster.until(phase("Running"))
    proxy.inject(Fault(is_watch, 410, times=15))
    proxy.cut_watches()

    await cluster.submit("other")
    await kubelet.finish("job-1", 1)

    await cluster.until(phase("Running"), "other")
    await cluster.until(lambda job: phase("Running")(job) and job["status"]["attempt"] == 1)
    # A watch may have worked again before the last of its errors; the next ones take up the rest.
    async with asyncio.timeout(WITHIN_S):
        while proxy.hits[410] < 15:
            proxy.cut_watches()
            await asyncio.sleep(0.1)  # between two tries
    await kubelet.finish("job-0", 1)
    await cluster.until(lambda job: phase("Running")(job) and job["status"]["attempt"] == 2)


@pytest.fixture
async def resyncing(granted: ControlPlane, namespace: str, witness: Witness) -> AsyncIterator[FaultProxy]:
    """Return a proxy whose operator resyncs every two seconds."""
    async with (
        FaultProxy(granted.url, granted.tls()).serving() as proxy,
        process.kept(granted, watch=namespace, server=proxy.url, resync_s=2),
    ):
        yield proxy


async def test_resync_makes_up_for_silent_watches(
    cluster: Cluster, kubelet: Kubelet, resyncing: FaultProxy, witness: Witness
):
    for name in ("crashed", "deleted"):
        await cluster.submit(name)
        await cluster.until(phase("Running"), name)

    resyncing.silent = True
    await kubelet.finish("crashed-1", 1)
    await cluster.api.delete(f"{cluster.jobs}/deleted")
    await cluster.submit("new")

    await cluster.until(phase("Running"), "new")
    await cluster.until(lambda job: phase("Running")(job) and job["status"]["attempt"] == 1, "crashed")
    await witness.settled()


async def test_resync_makes_up_for_lost_repeated_and_reordered_events(
    cluster: Cluster, kubelet: Kubelet, resyncing: FaultProxy, witness: Witness
):
    resyncing.mangle = losing(random.Random(7), lost=0.3, doubled=0.2, swapped=0.2)
    resyncing.cut_watches()
    for number in range(6):
        await cluster.submit(f"job-{number}", recovery={"maxRestarts": 2, "backoffSeconds": 0})
    for number in range(6):
        await cluster.until(phase("Running"), f"job-{number}")

    await kubelet.finish("job-0-1", 1)
    await cluster.api.delete(f"{cluster.pods}/job-1-0")
    await cluster.api.delete(f"{cluster.jobs}/job-2")
    await cluster.change("job-3", suspend=True)
    await cluster.api.delete(f"{SERVICES.format(cluster.namespace)}/job-4")
    for name in ("job-5-0", "job-5-1"):
        await kubelet.finish(name)

    for number in (0, 1):
        await cluster.until(
            lambda job: phase("Running")(job) and job["status"]["attempt"] == 1, f"job-{number}"
        )
    await cluster.until(phase("Suspended"), "job-3")
    await cluster.until(phase("Succeeded"), "job-5")
    await witness.settled()
