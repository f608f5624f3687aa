"""Two operators, of one release or of two: they never both write."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from aiohttp import web

from dtj_operator import VERSION
from tests.chaos.witness import Witness
from tests.integration.api import POLICIES
from tests.integration.controlplane import ControlPlane
from tests.integration.kubelet import Kubelet
from tests.integration.operator import process
from tests.integration.operator.conftest import Cluster
from tests.integration.operator.test_absence import holder
from tests.support.faultproxy import Fault, FaultProxy, calling
from tests.support.predicates import phase

Json = dict[str, Any]
FIRST, JOBS_MADE, REPLICAS = 2, 8, 5


def writers(audit: list[Json]) -> list[str]:
    """Return the writer of each request, in order of arrival, without renewals of the lease.

    A review of one's own rights is posted too, but stores nothing.
    """
    writes = [
        (line["requestReceivedTimestamp"], line["userAgent"])
        for line in audit
        if line["verb"] not in ("get", "list", "watch")
        and line["objectRef"]["resource"] not in ("leases", "events", "selfsubjectaccessreviews")
    ]
    return [agent for _, agent in sorted(writes)]


def pods_after(count: int) -> Callable[[web.Request], bool]:
    """Return a predicate: a pod is created after this number of pods."""
    is_creation, created = calling("POST", "pods"), itertools.count()
    return lambda request: is_creation(request) and next(created) >= count


@pytest.mark.long(25)
async def test_leader_that_freezes_while_writing_is_replaced_and_stops_writing(
    granted: ControlPlane, cluster: Cluster, kubelet: Kubelet, witness: Witness
):
    before = len(granted.audit())
    async with (
        FaultProxy(granted.url, granted.tls()).serving() as proxy,
        process.running(granted, watch=cluster.namespace, identity="leader", server=proxy.url) as leader,
    ):
        await cluster.submit("first", replicas=FIRST)
        await cluster.until(phase("Running"), "first")
        # It cannot get beyond the middle of its work, however long it takes until it freezes.
        proxy.inject(Fault(pods_after(REPLICAS), 503, times=10**6))
        async with process.running(granted, watch=cluster.namespace, identity="follower") as follower:
            for number in range(JOBS_MADE):
                await cluster.submit(f"job-{number}", replicas=REPLICAS)
            await witness.until(lambda seen: seen.births == FIRST + REPLICAS)

            leader.freeze()

            await witness.settled()
            proxy.clear()
            leader.thaw()
            assert await leader.process.wait() == 1, "it has lost the lease and exits"
            await witness.settled()
            assert await holder(cluster) == "follower"
            await follower.stop()

    order = writers(granted.audit()[before:])
    first, second = (f"dtj-operator/{VERSION} ({name})" for name in ("leader", "follower"))
    assert set(order) == {first, second}
    # Requests that passed the check of the lease before the freeze are sent after it, one a job at most.
    assert order[order.index(second) :].count(first) <= JOBS_MADE, (
        "the second operator started after the first had stopped"
    )


async def test_of_two_releases_that_serve_all_namespaces_one_writes(
    granted: ControlPlane, cluster: Cluster, kubelet: Kubelet
):
    policy = f"{POLICIES.format(cluster.namespace)}/job"

    def admits(release: str) -> Callable[[Json], bool]:
        return lambda found: release in str(found["spec"]["ingress"])

    async with process.running(granted, identity="first", resync_s=0.5) as first:
        await cluster.submit()
        await cluster.until(phase("Running"))
        theirs = {"identity": "second", "namespace": "second-release", "resync_s": 0.5}
        async with process.running(granted, **theirs):
            before = len(granted.audit())
            for suspended, reached in ((True, "Suspended"), (False, "Running")):
                await cluster.change(suspend=suspended)
                await cluster.until(phase(reached))
            assert {each for each in writers(granted.audit()[before:]) if "dtj-operator" in each} == {
                f"dtj-operator/{VERSION} (first)"
            }
            assert admits(process.NAMESPACE)(await cluster.api.get(policy))

            await first.stop()

            await cluster.api.until(policy, admits("second-release"))
