"""Which nodes should new pods avoid?

First, nodes that were just lost, because the scheduler may not know yet. Second, nodes on which this job had
`avoidNodeAfterFaults` faults, for an hour after the last fault, because a bad accelerator fails the same job
again and again; at most half of the nodes that a pod could run on, so that enough remain.

No node is avoided once pods are unschedulable, nor if the template sets nodeName: then no scheduler is
involved, and the kubelet rejects a pod whose affinity excludes its own node.
"""

from typing import Any

from dtj_operator.plan import blame, times
from dtj_operator.plan.actions import AllowNodes, Fault, Restart, Verdict
from dtj_operator.plan.policies.restart import MAX_REPLACED
from dtj_operator.plan.snapshot import SUSPENDED, FaultyNode, Snapshot

Json = dict[str, Any]

MAX_RECORDED = 20  # nodes in the status
AVOID_S = 3600.0  # after the last fault
ALLOW_AFTER_S = 10.0  # unschedulable; the capacity of old pods takes a moment to become free
LEASE_SPREAD_S = 15.0  # kubelets renew every 10 s, so Leases of nodes lost together expire this far apart
NOT_NODE_FAULTS = ("Evicted", "PeerLost")


def avoided(s: Snapshot) -> tuple[str, ...]:
    """Names of the nodes, latest fault first."""
    known = {faulty.node: faulty.faults for faulty in _recent(s)}
    if not known or s.nodes is None or _is_pinned(s):
        return ()
    enough = s.job.recovery.avoid_node_after_faults
    selector = (s.job.template["spec"].get("nodeSelector") or {}).items()
    fitting = [
        n for n in s.nodes.values() if n.ready and not n.unschedulable and selector <= n.labels.items()
    ]
    lost = [node for node in known if node in s.lost_nodes]
    bad = [
        node for node, faults in known.items() if enough is not None and faults >= enough and node not in lost
    ]
    return (*lost, *bad[: len(fitting) // 2])


def allow_nodes(s: Snapshot) -> AllowNodes | None:
    """Stop avoiding nodes, and recreate the pods that are unschedulable while nodes are avoided."""
    if s.memory.phase == SUSPENDED or not avoided(s):
        return None
    stuck = [
        (index, pod.uid)
        for index, pod in sorted(s.current.items())
        if pod.seen.unschedulable is not None and s.monotonic - pod.seen.unschedulable >= ALLOW_AFTER_S
    ]
    return AllowNodes(tuple(stuck[:MAX_REPLACED])) if stuck else None


def requeue_at(s: Snapshot) -> float | None:
    """When the first unschedulable pod has waited long enough."""
    if not avoided(s):
        return None
    seen = [pod.seen.unschedulable for pod in s.current.values()]
    waiting = [since for since in seen if since is not None]
    return s.wall(min(waiting)) + ALLOW_AFTER_S if waiting else None


def status_entries(s: Snapshot, verdict: Verdict | None) -> list[Json]:
    """status.avoidedNodes after this reconcile."""
    if isinstance(verdict, AllowNodes):
        return []
    known = _recent(s)
    fault = verdict.fault if isinstance(verdict, Restart) else blame.in_place_fault(s)
    if fault is not None and _counts_against_node(fault):
        before = {faulty.node: faulty.faults for faulty in known}
        named = dict.fromkeys((fault.node, *_lost_together(s, fault)))
        new = [FaultyNode(node=node, faults=before.get(node, 0) + 1, at=s.now) for node in named]
        known = [*new, *(faulty for faulty in known if faulty.node not in named)][:MAX_RECORDED]
    enough = None if _is_pinned(s) else s.job.recovery.avoid_node_after_faults
    return [_entry(faulty, enough) for faulty in known]


def _is_pinned(s: Snapshot) -> bool:
    return bool(s.job.template["spec"].get("nodeName"))


def _recent(s: Snapshot) -> list[FaultyNode]:
    return [faulty for faulty in s.memory.faulty_nodes if s.now - faulty.at < AVOID_S]


def _lost_together(s: Snapshot, fault: Fault) -> list[str]:
    """Nodes that are lost together with the blamed node, or will be very soon, such as those of its rack."""
    if fault.reason != "NodeLost":
        return []
    moments = [(pod.node, s.lost_at(pod)) for pod in s.current.values() if not pod.ended]
    return sorted({node for node, at in moments if at is not None and at - s.now <= LEASE_SPREAD_S})


def _counts_against_node(fault: Fault) -> bool:
    return bool(fault.node) and fault.reason not in NOT_NODE_FAULTS and fault.exit_code != blame.STOPPED


def _entry(faulty: FaultyNode, enough: int | None) -> Json:
    entry: Json = {"node": faulty.node, "faults": faulty.faults, "at": times.rfc3339(faulty.at)}
    if enough is not None and faulty.faults >= enough:
        entry["until"] = times.rfc3339(faulty.at + AVOID_S)
    return entry
