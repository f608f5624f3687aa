"""Two operators, one of which hangs at the worst moment: never do both of them write."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from aiohttp import web

from tests.chaos.witness import Witness
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
    """Return who wrote, request by request in the order of their arrival; renewals of the lease aside."""
    writes = [
        (line["requestReceivedTimestamp"], line["userAgent"])
        for line in audit
        if line["verb"] not in ("get", "list", "watch")
        and line["objectRef"]["resource"] not in ("leases", "events")
    ]
    return [agent for _, agent in sorted(writes)]


def pods_after(count: int) -> Callable[[web.Request], bool]:
    """Return a predicate: a pod is created, and so many have been before."""
    is_creation, created = calling("POST", "pods"), itertools.count()
    return lambda request: is_creation(request) and next(created) >= count


async def test_leader_that_hangs_while_it_writes_is_followed_and_writes_no_more(
    granted: ControlPlane, cluster: Cluster, kubelet: Kubelet, witness: Witness
):
    before = len(granted.audit())
    async with (
        FaultProxy(granted.url, granted.tls()).serving() as proxy,
        process.running(granted, watch=cluster.namespace, identity="leader", server=proxy.url) as leader,
    ):
        await cluster.submit("first", replicas=FIRST)
        await cluster.until(phase("Running"), "first")
        # It tries in vain to get beyond the middle of its work, however long it takes until it hangs.
        proxy.inject(Fault(pods_after(REPLICAS), 503, times=10**6))
        async with process.running(granted, watch=cluster.namespace, identity="follower") as follower:
            for number in range(JOBS_MADE):
                await cluster.submit(f"job-{number}", replicas=REPLICAS)
            await witness.until(lambda seen: seen.births == FIRST + REPLICAS)

            leader.freeze()

            await witness.settled()
            proxy.clear()
            leader.thaw()
            assert await leader.process.wait() == 1, "it has lost the lease, and ends"
            await witness.settled()
            assert await holder(cluster) == "follower"
            await follower.stop()

    order = writers(granted.audit()[before:])
    first, second = (f"dtj-operator ({name})" for name in ("leader", "follower"))
    assert set(order) == {first, second}
    # One request may have been between the last look at the lease and the wire.
    assert order[order.index(second) :].count(first) <= 1, "the second began after the first had ended"
