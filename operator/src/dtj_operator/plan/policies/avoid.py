"""Which nodes are new pods to keep away from?

Those that were just lost: the scheduler may not know yet that they are. And those on which this job had
`avoidNodeAfter` faults, for an hour after the last of them: a bad accelerator fails the same job again and
again. Of these never so many that nothing fits: at most half of the nodes that a pod could go to. None at all
any more once the scheduler finds no room, and none where the template names the node: no scheduler is asked
then, and the kubelet refuses a pod whose affinity is against its own node.
"""

from typing import Any

from dtj_operator.plan import blame, times
from dtj_operator.plan.actions import Fault, Lift, Restart, Verdict
from dtj_operator.plan.policies.restart import MOST_REPLACED
from dtj_operator.plan.snapshot import SUSPENDED, Snapshot, Suspect, unschedulable_since

Json = dict[str, Any]

KEPT = 20  # nodes in the status
FOR_S = 3600.0  # after the last fault
LIFT_AFTER_S = 10.0  # the room that old pods leave is not there in the same second
SOON_S = 15.0  # a kubelet renews every 10 s: leases of nodes that died together expire so far apart
NOT_THE_NODES = ("Evicted", "PeerLost")


def avoided(s: Snapshot) -> tuple[str, ...]:
    """Names of the nodes, those with the latest faults first."""
    if s.nodes is None or _is_pinned(s):
        return ()
    enough = s.job.recovery.avoid_node_after
    wanted = (s.job.template["spec"].get("nodeSelector") or {}).items()
    fitting = [n for n in s.nodes.values() if n.ready and not n.unschedulable and wanted <= n.labels.items()]
    known = {suspect.node: suspect.faults for suspect in _fresh(s)}
    lost = [node for node in known if node in s.lost_nodes]
    bad = [node for node, faults in known.items() if enough and faults >= enough and node not in lost]
    return (*lost, *bad[: len(fitting) // 2])


def lift(s: Snapshot) -> Lift | None:
    """Pods that find no room while nodes are avoided are made anew without that."""
    if s.memory.phase == SUSPENDED or not avoided(s):
        return None
    stuck = [
        (index, pod.uid)
        for index, pod in sorted(s.current.items())
        if (since := unschedulable_since(pod)) is not None and s.now - since >= LIFT_AFTER_S
    ]
    return Lift(tuple(stuck[:MOST_REPLACED])) if stuck else None


def look_at(s: Snapshot) -> float | None:
    """When pods will have waited for long enough."""
    if not avoided(s):
        return None
    waiting = [since for pod in s.current.values() if (since := unschedulable_since(pod)) is not None]
    return min(waiting) + LIFT_AFTER_S if waiting else None


def told(s: Snapshot, verdict: Verdict | None) -> list[Json]:
    """What the status says of the nodes after this look."""
    if isinstance(verdict, Lift):
        return []
    known = _fresh(s)
    fault = verdict.fault if isinstance(verdict, Restart) else blame.healed(s)
    if fault is not None and _suspicious(fault):
        before = {suspect.node: suspect.faults for suspect in known}
        named = dict.fromkeys((fault.node, *_lost_beside(s, fault)))
        new = [Suspect(node=node, faults=before.get(node, 0) + 1, at=s.now) for node in named]
        known = [*new, *(suspect for suspect in known if suspect.node not in named)][:KEPT]
    enough = 0 if _is_pinned(s) else s.job.recovery.avoid_node_after
    return [_entry(suspect, enough) for suspect in known]


def _is_pinned(s: Snapshot) -> bool:
    return bool(s.job.template["spec"].get("nodeName"))


def _fresh(s: Snapshot) -> list[Suspect]:
    return [suspect for suspect in s.memory.suspects if s.now - suspect.at < FOR_S]


def _lost_beside(s: Snapshot, fault: Fault) -> list[str]:
    """Nodes that are lost together with the blamed one, or very soon will be: a rack goes at once."""
    if fault.reason != "NodeLost":
        return []
    moments = [(pod.node, s.lost_at(pod)) for pod in s.current.values() if not pod.ended]
    return sorted({node for node, at in moments if at is not None and at - s.now <= SOON_S})


def _suspicious(fault: Fault) -> bool:
    return bool(fault.node) and fault.reason not in NOT_THE_NODES and fault.exit_code != blame.STOPPED


def _entry(suspect: Suspect, enough: int) -> Json:
    entry: Json = {"node": suspect.node, "faults": suspect.faults, "at": times.rfc3339(suspect.at)}
    if enough and suspect.faults >= enough:
        entry["until"] = times.rfc3339(suspect.at + FOR_S)
    return entry
