"""Changes while no operator is running, and takeovers between operators."""

from __future__ import annotations

import pytest

from tests.integration.api import LEASES, POLICIES, SERVICES
from tests.integration.controlplane import ControlPlane
from tests.integration.kubelet import Kubelet
from tests.integration.operator import process
from tests.integration.operator.conftest import Cluster
from tests.integration.operator.process import LEASE, LEASE_NAMESPACE, Operator
from tests.integration.operator.test_elastic import LONG_AGO
from tests.support.predicates import condition, phase


async def holder(cluster: Cluster) -> str:
    """Return the name of the pod that holds the lease."""
    lease = await cluster.api.get(f"{LEASES.format(LEASE_NAMESPACE)}/{LEASE}")
    found: str = lease["spec"].get("holderIdentity") or ""
    return found.rpartition("/")[2]


async def test_change_without_an_operator_is_found_later(
    granted: ControlPlane, cluster: Cluster, kubelet: Kubelet
):
    async with process.kept(granted, watch=cluster.namespace):
        await cluster.submit()
        await cluster.submit("other")
        await cluster.until(phase("Running"))
        await cluster.until(phase("Running"), "other")

    await cluster.change(suspend=True)
    await kubelet.finish("other-1", 1)

    async with process.kept(granted, watch=cluster.namespace):
        await cluster.until(phase("Suspended"))
        await cluster.until(lambda job: phase("Running")(job) and job["status"]["attempt"] == 1, "other")
        await kubelet.until_running("other-0", "other-1")


async def test_job_deleted_without_an_operator_leaves_nothing(
    granted: ControlPlane, cluster: Cluster, kubelet: Kubelet
):
    async with process.kept(granted, watch=cluster.namespace):
        await cluster.submit()
        await cluster.until(phase("Running"))

    await cluster.api.delete(f"{cluster.jobs}/job")

    async with process.kept(granted, watch=cluster.namespace):
        await kubelet.until(lambda pods: not pods)
        await cluster.api.until_gone(f"{SERVICES.format(cluster.namespace)}/job")
        await cluster.api.until_gone(f"{POLICIES.format(cluster.namespace)}/job")


async def test_job_recreated_with_the_same_name_is_another_job(
    granted: ControlPlane, cluster: Cluster, kubelet: Kubelet
):
    async with process.kept(granted, watch=cluster.namespace):
        await cluster.submit()
        await cluster.until(phase("Running"))

    await cluster.api.delete(f"{cluster.jobs}/job")
    again = await cluster.submit()

    async with process.kept(granted, watch=cluster.namespace):
        await cluster.until(phase("Running"))
        pods = await kubelet.until_running("job-0", "job-1")
    service = await cluster.api.get(f"{SERVICES.format(cluster.namespace)}/job")
    for child in (service, *pods.values()):
        assert child["metadata"]["ownerReferences"][0]["uid"] == again["metadata"]["uid"]


async def test_deadline_that_passed_without_an_operator_counts(
    granted: ControlPlane, cluster: Cluster, kubelet: Kubelet
):
    async with process.kept(granted, watch=cluster.namespace):
        await cluster.submit(activeDeadlineSeconds=3600)
        await cluster.until(phase("Running"))

    # The hour has passed.
    await cluster.api.patch(f"{cluster.jobs}/job/status", {"status": {"startTime": LONG_AGO}})

    async with process.kept(granted, watch=cluster.namespace):
        job = await cluster.until(phase("Failed"))
        assert condition("Failed", reason="DeadlineExceeded")(job)
        await kubelet.until(lambda pods: not pods)


@pytest.mark.long(24)
async def test_one_of_two_operators_leads_and_the_second_takes_over(
    granted: ControlPlane, cluster: Cluster, kubelet: Kubelet
):
    async with (
        process.running(granted, watch=cluster.namespace, identity="operator-0") as one,
        process.running(granted, watch=cluster.namespace, identity="operator-1") as two,
    ):
        await cluster.submit("before")
        await cluster.until(phase("Running"), "before")
        pair: dict[str, Operator] = {each.identity: each for each in (one, two)}
        leader = await holder(cluster)
        (follower,) = pair.keys() - {leader}

        await pair[leader].kill()
        await cluster.submit("after")
        await cluster.until(phase("Running"), "after")

        assert await holder(cluster) == follower
        assert (await cluster.job("before"))["status"]["restarts"]["total"] == 0
        pods = await kubelet.until_running("before-0", "before-1", "after-0", "after-1")
        assert len(kubelet.born) == len(pods), "every pod was created once"
        assert await pair[follower].stop() == 0


async def test_operator_that_gets_sigterm_releases_the_lease_at_once(
    granted: ControlPlane, cluster: Cluster, kubelet: Kubelet
):
    async with process.running(granted, watch=cluster.namespace, identity="operator-0") as one:
        await cluster.submit()
        await cluster.until(phase("Running"))
        assert await holder(cluster) == "operator-0"

        assert await one.stop() == 0

        assert await holder(cluster) == ""
    await kubelet.until_running("job-0", "job-1")
