"""Pods, and what is known of the nodes that they are on: which of these are lost, and since when.

Kubernetes says that a node is not ready, some 50 s after its last sign of life, and `nodeLostSeconds` later
it is lost. Two witnesses together need not wait for that: the job's own agents, who do not hear of one of
theirs, and the Lease that the node's kubelet does not renew any more. One of them alone proves nothing: an
agent that is silent may be slow or cut off, and a kubelet that hangs leaves its pods running.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from dtj_operator.kube.nodes import NodeLease, NodeView
from dtj_operator.kube.views import PodView
from dtj_operator.plan.pace import soonest
from dtj_operator.spec import Recovery

# Of a lease's duration: kubelets renew after a quarter of it. Whatever a node's clock says, its lease has not
# expired as long as it is renewed while we look; a renewal may be late by half its time.
UNCHANGED = 0.375
MOST_LOOKS = 16  # leases of one job that are read at a time; of more nodes Kubernetes tells


@dataclass(frozen=True, kw_only=True)
class Placed:
    """Pods of one job at one moment; what is known of nodes is by their names."""

    pods: tuple[PodView, ...] = ()
    nodes: Mapping[str, NodeView] | None = None  # None: they may not be read, or are in doubt
    gone_since: Mapping[str, float] = field(default_factory=dict)  # nodes that were there and are not now
    leases: Mapping[str, NodeLease] = field(
        default_factory=dict
    )  # of doubted nodes, as far as they can be read
    now: float

    @property
    def node_lost_s(self) -> int:
        """How long a node may be away before it is taken for lost; 0: it never is."""
        return Recovery().node_lost_s

    @cached_property
    def suspects(self) -> tuple[PodView, ...]:
        """Pods whose agents took part and are not heard of: the first witness that their nodes are lost."""
        return ()

    @property
    def doubted_nodes(self) -> tuple[str, ...]:
        """Nodes whose leases are worth reading."""
        if not self.node_lost_s or self.nodes is None:
            return ()
        return tuple(sorted({pod.node for pod in self.suspects if pod.node})[:MOST_LOOKS])

    def lost(self, pod: PodView) -> bool:
        at = self.lost_at(pod)
        return at is not None and self.now >= at

    def lost_at(self, pod: PodView) -> float | None:
        """When its node is, or was, to be taken for lost; None where nothing speaks for that."""
        nodes = self.nodes
        if not self.node_lost_s or not pod.node or nodes is None:
            return None
        if not any(node.ready for node in nodes.values()):
            return None
        return soonest(self._away_at(pod), self._silent_at(pod))

    def lease_expired_s(self, pod: PodView) -> float | None:
        """Seconds since the lease of its node expired, where that is why it is lost."""
        at = self._silent_at(pod)
        if at is None or self.now < at:
            return None
        lease = self.leases[pod.node]
        return self.now - lease.renewed_at - lease.duration_s

    def _away_at(self, pod: PodView) -> float | None:
        """By the word of Kubernetes."""
        view = self.nodes.get(pod.node) if self.nodes is not None else None
        since = view.not_ready_since if view is not None else self.gone_since.get(pod.node)
        return None if since is None else _came(pod, since) + self.node_lost_s

    def _silent_at(self, pod: PodView) -> float | None:
        """By that of the two witnesses."""
        lease = self.leases.get(pod.node)
        if lease is None or pod not in self.suspects:
            return None
        expires = _came(pod, lease.renewed_at) + lease.duration_s
        certain = self.now + UNCHANGED * lease.duration_s - lease.unchanged_s
        return max(expires, certain)


def _came(pod: PodView, away: float) -> float:
    """When the time of a pod on such a node begins.

    One that tolerates such nodes may come to one; it has its time too, or it would be replaced in a loop.
    """
    placed = pod.condition("PodScheduled")
    came = placed.since if placed is not None and placed.since is not None else away
    return max(away, came)
