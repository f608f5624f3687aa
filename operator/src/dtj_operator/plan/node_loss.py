"""Which nodes are lost, and since when; pods that their kubelets do not confirm gone are force-deleted.

Kubernetes marks a node NotReady about 50 s after its last heartbeat; `nodeLostSeconds` later it counts as
lost. It counts as lost sooner if two signals agree: a silent agent (the job's other agents get no heartbeat
from it) and an expired Lease (the node's kubelet does not renew it). One signal alone proves nothing: a
silent agent may be slow or isolated, and a kubelet that hangs leaves its pods running.

A pod is force-deleted at once on a lost node, and after a longer wait on a ready node: there a pod stays
Terminating if its kubelet cannot end it, because a process waits for a device or a file system, or a volume
cannot be unmounted.

A node is never lost if the operator has no permission to read nodes, or if no node at all is ready: then the
control plane has lost contact with the nodes.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from dtj_operator.model.spec import Recovery
from dtj_operator.model.times import soonest
from dtj_operator.model.views import NodeLease, NodeView, PodView
from dtj_operator.plan.actions import Decision, DeletePod

# Share of a Lease's duration without a renewal before the Lease can count as expired, whatever the node's
# clock says. Kubelets renew after a quarter of the duration; a renewal may be late by half of that.
UNCHANGED_SHARE = 0.375
OVERDUE_S = 10.0  # after its grace period: kubelets and runtimes need a moment to remove a pod
MAX_LEASES = 16  # Leases read per job and reconcile; for more nodes wait until they are NotReady
FORCED_GRACE_S = 0
LEASE_CHECK_S = 4.0  # between two reads of the Leases of suspected nodes


@dataclass(frozen=True, kw_only=True)
class PodsOnNodes:
    """The pods of one job at one moment, and the nodes and Leases by node name."""

    pods: tuple[PodView, ...] = ()
    nodes: Mapping[str, NodeView] | None = None  # None: no permission to read them, or possibly outdated
    gone_since: Mapping[str, float] = field(default_factory=dict)  # nodes that existed; monotonic clock
    leases: Mapping[str, NodeLease] = field(default_factory=dict)  # of `nodes_to_check`, if readable
    now: float  # seconds since the epoch
    monotonic: float  # the same moment by this process's monotonic clock, the clock of PodView.seen

    @property
    def recovery(self) -> Recovery:
        """The job's settings for recovery."""
        raise NotImplementedError

    @cached_property
    def silent_pods(self) -> dict[str, PodView]:
        """Pods, by uid, whose agents took part and are silent now: the first sign of a lost node."""
        return {}

    @cached_property
    def _suspects(self) -> frozenset[str]:
        """The few nodes that may be lost; everything else about a loss is computed for their pods only."""
        nodes, never = self.nodes, self.recovery.node_lost_s is None
        if never or nodes is None or not any(node.ready for node in nodes.values()):
            return frozenset()
        names = {pod.node for pod in self.pods if pod.node}
        return frozenset(n for n in names if n not in nodes or not nodes[n].ready or n in self.leases)

    @property
    def nodes_to_check(self) -> tuple[str, ...]:
        """Nodes of silent pods, whose Leases have to be read."""
        if self.recovery.node_lost_s is None or self.nodes is None:
            return ()
        return tuple(sorted({pod.node for pod in self.silent_pods.values() if pod.node})[:MAX_LEASES])

    def wall(self, moment: float) -> float:
        """A moment of the monotonic clock in seconds since the epoch, as that clock is set now."""
        return self.now - self.monotonic + moment

    def next_of(self, moments: Iterable[float | None]) -> float | None:
        """The first of these moments that is still to come."""
        return min((at for at in moments if at is not None and at > self.now), default=None)

    def _is_past(self, at: float | None) -> bool:
        return at is not None and self.now >= at

    def lost(self, pod: PodView) -> bool:
        return self._is_past(self.lost_at(pod))

    def lost_at(self, pod: PodView) -> float | None:
        """When its node counts, or counted, as lost; None if nothing indicates that."""
        if self.recovery.node_lost_s is None or pod.node not in self._suspects:
            return None
        return soonest(self._away_at(pod, self.recovery.node_lost_s), self._silent_at(pod))

    def overdue_at(self, pod: PodView) -> float | None:
        """When a terminating pod should be gone; None if it is not terminating."""
        if not pod.deleting or pod.removed or pod.seen.terminating is None:
            return None
        return self.wall(pod.seen.terminating) + pod.grace_s + OVERDUE_S

    def overdue(self, pod: PodView) -> bool:
        return self._is_past(self.overdue_at(pod))

    def forced_at(self, pod: PodView) -> float | None:
        """When a pod that does not terminate is force-deleted although its node is ready; None: never."""
        node, limit_s = (self.nodes or {}).get(pod.node), self.recovery.termination_s
        overdue_at = self.overdue_at(pod)
        if node is None or not node.ready or limit_s is None or overdue_at is None or pod.held_by:
            return None
        # Later than overdue, so that the status says first that new pods avoid the node.
        return overdue_at + max(OVERDUE_S, limit_s - OVERDUE_S)

    def forced(self, pod: PodView) -> bool:
        return self._is_past(self.forced_at(pod))

    def lease_expired_s(self, pod: PodView) -> float | None:
        """Seconds since the Lease of its node expired, if that is why the node is lost."""
        if not self._is_past(self._silent_at(pod)):
            return None
        lease = self.leases[pod.node]
        return self.now - lease.renewed_at - lease.duration_s

    def _away_at(self, pod: PodView, node_lost_s: int) -> float | None:
        """When the node is lost because it is NotReady or gone."""
        view = self.nodes.get(pod.node) if self.nodes is not None else None
        since = view.away_since if view is not None else self.gone_since.get(pod.node)
        if since is None:
            return None
        # A pod that tolerates such nodes may be scheduled to one. It gets the full time, or it would be
        # replaced in a loop.
        return self.wall(max(since, pod.seen.bound or since)) + node_lost_s

    def _silent_at(self, pod: PodView) -> float | None:
        """When the node is lost because its agent is silent and its Lease has expired."""
        lease = self.leases.get(pod.node)
        if lease is None or pod.uid not in self.silent_pods:
            return None
        bound = lease.renewed_at if pod.seen.bound is None else self.wall(pod.seen.bound)
        expires = max(lease.renewed_at, bound) + lease.duration_s
        certain = self.now + UNCHANGED_SHARE * lease.duration_s - lease.unchanged_s
        return max(expires, certain)


def force_delete_lost(on: PodsOnNodes, decision: Decision) -> Decision:
    """The same decision, with every deletion on a lost node made a force-deletion."""
    if decision.verdict is not None:
        return decision
    actions = tuple(
        replace(action, grace_s=FORCED_GRACE_S)
        if isinstance(action, DeletePod) and on.lost(action.pod)
        else action
        for action in decision.actions
    )
    stuck = tuple(
        DeletePod(pod, FORCED_GRACE_S)
        for pod in on.pods
        if pod.owner_uid and pod.deleting and not pod.held_by and (on.lost(pod) or on.forced(pod))
    )
    # No event shows that a pod does not end: by then its view says until when it may take.
    deleted_at = on.now + OVERDUE_S if decision.deleted_pods else None
    again = soonest(decision.requeue_at, _requeue_at(on), deleted_at)
    return replace(decision, actions=actions + stuck, requeue_at=again)


def _requeue_at(on: PodsOnNodes) -> float | None:
    """When the next node becomes lost or pod overdue, or a Lease has to be read again."""
    moments = [on.lost_at(pod) for pod in on.pods if pod.deleting or not pod.ended]
    for pod in on.pods:
        if pod.deleting:
            moments += [on.overdue_at(pod), on.forced_at(pod)]
    if on.nodes_to_check:
        moments.append(on.now + LEASE_CHECK_S)
    return on.next_of(moments)
