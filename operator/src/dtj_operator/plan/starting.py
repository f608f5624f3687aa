"""Pods that are on a node and do not start, because a volume or the network of the pod is not ready.

Examples are a volume that is still attached to another node, a Secret that does not exist, and a CNI plugin
that fails. The kubelet reports these only in Events, which the operator has no permission to read, and as the
pod condition PodReadyToStartContainers. Images are pulled later, so a slow pull does not count.
"""

from dtj_operator.model.views import PodView
from dtj_operator.plan.snapshot import Snapshot

SLOW_START_S = 120.0  # attaching a volume may take a minute


def slow_from(s: Snapshot, pod: PodView) -> float | None:
    """When its start counts, or counted, as slow; None if it does not wait for volumes or the network."""
    prepared = pod.condition("PodReadyToStartContainers")
    if pod.phase != "Pending" or pod.deleting or pod.seen.bound is None:
        return None
    if prepared is None or prepared.status != "False":
        return None
    return s.wall(pod.seen.bound) + SLOW_START_S


def requeue_at(s: Snapshot) -> float | None:
    """When the status has to report the next pod whose start is slow."""
    moments = [at for pod in s.current.values() if (at := slow_from(s, pod)) is not None and at > s.now]
    return min(moments, default=None)
