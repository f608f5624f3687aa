"""Two operators, one of which hangs at the worst moment: never do both of them write."""

from __future__ import annotations

from typing import Any

from tests.chaos.witness import Witness
from tests.integration.controlplane import ControlPlane
from tests.integration.kubelet import Kubelet
from tests.integration.operator import process
from tests.integration.operator.conftest import Cluster
from tests.integration.operator.process import Operator
from tests.integration.operator.test_absence import holder

Json = dict[str, Any]
JOBS_MADE, REPLICAS = 8, 5


def writers(audit: list[Json]) -> list[str]:
    """Return who wrote, request by request in the order of their arrival; renewals of the lease aside."""
    writes = [
        (line["requestReceivedTimestamp"], line["userAgent"])
        for line in audit
        if line["verb"] not in ("get", "list", "watch")
        and line["objectRef"]["resource"] not in ("leases", "events")
    ]
    return [agent for _, agent in sorted(writes)]


async def test_leader_that_hangs_while_it_writes_is_followed_and_writes_no_more(
    granted: ControlPlane, cluster: Cluster, kubelet: Kubelet, witness: Witness
):
    before = len(granted.audit())
    async with (
        # So slow that a burst of jobs takes seconds: it hangs in the middle of it.
        process.running(granted, watch=cluster.namespace, identity="operator-0", rate=15) as one,
        process.running(granted, watch=cluster.namespace, identity="operator-1", rate=15) as two,
    ):
        pair: dict[str, Operator] = {each.identity: each for each in (one, two)}
        for number in range(JOBS_MADE):
            await cluster.submit(f"job-{number}", replicas=REPLICAS)
        await witness.until(lambda seen: seen.births >= REPLICAS)
        leader = await holder(cluster)
        (follower,) = pair.keys() - {leader}

        pair[leader].freeze()

        assert witness.births < JOBS_MADE * REPLICAS, "it was in the middle of its work"
        await witness.until(lambda seen: seen.births == JOBS_MADE * REPLICAS)
        pair[leader].thaw()
        assert await pair[leader].process.wait() == 1, "it has lost the lease, and ends"
        await witness.settled()
        assert await holder(cluster) == follower
        await pair[follower].stop()

    order = writers(granted.audit()[before:])
    agents = [f"dtj-operator ({name})" for name in (leader, follower)]
    assert order == sorted(order, key=agents.index), "the second began after the first had ended"
    assert set(agents) == set(order)
