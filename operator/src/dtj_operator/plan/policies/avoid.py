"""Which nodes should new pods avoid?

First, nodes that were just lost, because the scheduler may not know yet. Second, nodes on which this job had
`avoidNodeAfterFaults` faults or on which a pod did not terminate, for an hour after the last fault, because a
bad accelerator fails the same job again and again. If a pod ends since its GPU cannot be used, that counts as
so many faults. An error of the program that happens on several nodes does not count.

    required    at first, of at most half of the nodes that a pod could run on, so that enough remain
    preferred   once pods that avoid nodes were unschedulable for `avoidNodeWaitSeconds`; if Kueue chooses the
                nodes, always, because it knows nothing of the faults and would choose the same nodes again

A node that no longer exists is not avoided: Karpenter adds no node for a pod that must avoid one. Nor is any
node if the template sets nodeName: then no scheduler is involved, and the kubelet rejects a pod whose
affinity excludes its own node.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from dtj_operator.model import times
from dtj_operator.model.json import Json
from dtj_operator.model.memory import FaultyNode
from dtj_operator.model.views import PodView
from dtj_operator.plan import blame, queue
from dtj_operator.plan.actions import AllowNodes, Fault, Restart, Verdict
from dtj_operator.plan.policies.restart import listable
from dtj_operator.plan.snapshot import Snapshot

MAX_RECORDED = 20  # nodes in the status
MAX_STUCK = 10  # of them: if pods do not terminate on more nodes, the cause is something that the nodes share
AVOID_S = 3600.0  # after the last fault
CAPACITY_WAIT_S = 10.0  # the capacity of old pods takes a moment to become free
LOST_WAIT_S = 60.0  # by then the scheduler knows that a node is lost
LEASE_SPREAD_S = 15.0  # kubelets renew every 10 s, so Leases of nodes lost together expire this far apart


@dataclass(frozen=True, kw_only=True)
class Avoided:
    """Names of nodes, latest fault first: on which new pods must not run, and should not run."""

    required: tuple[str, ...] = ()
    preferred: tuple[str, ...] = ()


def avoided(s: Snapshot) -> Avoided:
    """The nodes that new pods avoid."""
    nodes = {} if s.nodes is None or _is_pinned(s) else s.nodes
    known = {faulty.node: faulty for faulty in _recent(s) if faulty.node in nodes}
    if not known:
        return Avoided()
    selector = (s.job.template["spec"].get("nodeSelector") or {}).items()
    fitting = [n for n in nodes.values() if n.ready and not n.unschedulable and selector <= n.labels.items()]
    lost = [node for node in known if node in s.lost_nodes]
    bad = [node for node, faulty in known.items() if node not in lost and _is_bad(s, faulty)]
    may_insist = s.recovery.avoid_node_wait_s and not queue.chooses_nodes(s)
    hard = bad[: len(fitting) // 2] if may_insist else []
    required = [node for node in (*lost, *hard) if not known[node].preferred]
    return Avoided(
        required=tuple(required),
        preferred=tuple(node for node in (*lost, *bad) if node not in required),
    )


def allow_nodes(s: Snapshot) -> AllowNodes | None:
    """Replace pods that must avoid nodes, and are unschedulable, by pods that only prefer other nodes."""
    waiting = {
        (index, pod.uid): since
        for index, pod in s.current.items()
        if (since := _stuck_since(pod)) is not None
    }
    earliest = s.monotonic - _wait_s(s) if waiting else 0.0
    due = listable(s, (which for which, since in waiting.items() if since <= earliest))
    return AllowNodes(due) if due else None


def requeue_at(s: Snapshot) -> float | None:
    """When the first unschedulable pod will have waited long enough."""
    waiting = [since for pod in s.current.values() if (since := _stuck_since(pod)) is not None]
    # Past: when one of the pods that are being replaced is gone.
    return s.next_of([s.wall(min(waiting)) + _wait_s(s)] if waiting else ())


def status_entries(s: Snapshot, verdict: Verdict | None) -> list[Json]:
    """status.avoidedNodes after this reconcile."""
    known = _recent(s)
    if isinstance(verdict, AllowNodes):
        allowed = avoided(s).required
        known = [replace(faulty, preferred=True) if faulty.node in allowed else faulty for faulty in known]
    fault = verdict.fault if isinstance(verdict, Restart) else blame.in_place_fault(s)
    if fault is not None and not blame.is_known(s, fault) and _counts_against_node(s, fault):
        enough = s.recovery.avoid_node_after_faults or 1
        more = enough if fault.reason == blame.DEVICE_FAULT and isinstance(verdict, Restart) else 1
        known = _with_faults(s, known, (fault.node, *_lost_together(s, fault)), more=more)
    new = _newly_stuck(s, known)
    if new:
        known = _with_faults(s, known, new)
        known = [replace(faulty, stuck=True) if faulty.node in new else faulty for faulty in known]
    avoids = not _is_pinned(s)
    return [_entry(faulty, is_bad=avoids and _is_bad(s, faulty)) for faulty in known]


def _newly_stuck(s: Snapshot, known: list[FaultyNode]) -> list[str]:
    """Nodes on which a pod does not terminate, and which are not recorded as such.

    If such nodes could displace each other, a job with pods on more of them would write a status for every
    pod that ends.
    """
    recorded = {faulty.node for faulty in known if faulty.stuck}
    late = {pod.node for pod in s.pods if pod.owner_uid and s.overdue(pod) and s.forced_at(pod) is not None}
    return sorted(late - recorded)[: max(0, MAX_STUCK - len(recorded))]


def _with_faults(
    s: Snapshot, known: list[FaultyNode], nodes: Iterable[str], *, more: int = 1
) -> list[FaultyNode]:
    """With more faults on each of these nodes."""
    before = {faulty.node: faulty for faulty in known}
    named = dict.fromkeys(nodes)
    first = [
        replace(before.get(node) or FaultyNode(node=node, faults=0, at=s.now), at=s.now) for node in named
    ]
    counted = [replace(faulty, faults=faulty.faults + more) for faulty in first]
    return [*counted, *(faulty for faulty in known if faulty.node not in named)][:MAX_RECORDED]


def _stuck_since(pod: PodView) -> float | None:
    """Since when the pod is unschedulable, if that may be because it avoids nodes."""
    return pod.seen.unschedulable if pod.avoids_nodes else None


def _wait_s(s: Snapshot) -> float:
    """How long pods that avoid nodes may be unschedulable."""
    required = avoided(s).required
    if not required:
        return CAPACITY_WAIT_S
    return LOST_WAIT_S if s.lost_nodes.issuperset(required) else s.recovery.avoid_node_wait_s


def _is_bad(s: Snapshot, faulty: FaultyNode) -> bool:
    enough = s.recovery.avoid_node_after_faults
    return faulty.stuck or (enough is not None and faulty.faults >= enough)


def _is_pinned(s: Snapshot) -> bool:
    return bool(s.job.template["spec"].get("nodeName"))


def _recent(s: Snapshot) -> list[FaultyNode]:
    # A fault far in the future was recorded before the clock was set back: when it was is unknown.
    return [faulty for faulty in s.memory.faulty_nodes if abs(s.now - faulty.at) < AVOID_S]


def _lost_together(s: Snapshot, fault: Fault) -> list[str]:
    """Nodes that are lost together with the blamed node, or will be very soon, such as those of its rack."""
    if fault.reason != "NodeLost":
        return []
    moments = [(pod.node, s.lost_at(pod)) for pod in s.current.values() if not pod.ended]
    return sorted({node for node, at in moments if at is not None and at - s.now <= LEASE_SPREAD_S})


def _counts_against_node(s: Snapshot, fault: Fault) -> bool:
    if not fault.node or fault.reason in ("PeerLost", blame.STOPPED):
        return False
    if fault.reason == "Evicted":  # by its kubelet before it ran, such as on a node without its devices
        return fault.exit_code is None and not fault.disruption
    return fault.reason not in blame.PROGRAM_ERRORS or not _failed_elsewhere(s, fault)


def _failed_elsewhere(s: Snapshot, fault: Fault) -> bool:
    """Whether another node has a fault in this incident, or had the same error in the one before."""
    before = s.memory.failure
    repeated = blame.is_same_error(fault, before) and before.get("node") not in (None, fault.node)
    return repeated or any(other.node != fault.node and not other.secondary for other in blame.faults(s))


def _entry(faulty: FaultyNode, *, is_bad: bool) -> Json:
    entry: Json = {"node": faulty.node, "faults": faulty.faults, "at": times.rfc3339(faulty.at)}
    if is_bad:
        entry["until"] = times.rfc3339(faulty.at + AVOID_S)
    flags = {"stuck": faulty.stuck, "preferred": faulty.preferred}
    return entry | {name: True for name, holds in flags.items() if holds}
