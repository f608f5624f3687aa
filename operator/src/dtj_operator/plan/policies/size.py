"""How many replicas should the attempt have?

A user changes `replicas`, or the cluster runs out of capacity. With scope Replica only scaling down needs a
verdict: the status must record the smaller size before the pods are deleted, so that they do not count as
faults. With scope Job a new size is a new attempt, which is not counted.

    scope Job, too little capacity:  full size -> 120 s unschedulable -> what fits, at least minReplicas
                                     -> after 10 minutes (20, 40, ...) the full size again
"""

from dtj_operator.model.memory import REPLICA, RUNNING, SUSPENDED
from dtj_operator.model.private import Shortage
from dtj_operator.model.views import PodView
from dtj_operator.plan.actions import Resize
from dtj_operator.plan.snapshot import Snapshot

SHRINK_AFTER_S = 120.0  # an elastic job stops waiting for a pod that is unschedulable for so long
RETRY_S = 600.0  # doubles while the full size does not fit, because every try costs a restart
MAX_RETRY_S = 4 * 3600.0


def resize(s: Snapshot) -> Resize | None:
    """Decide on a new size, or None to keep the size."""
    known = s.memory.recorded_size
    if s.job.elastic is None or known is None or s.memory.phase in ("", SUSPENDED):
        return None
    desired = s.job.replicas
    if s.scope == REPLICA:
        why = f"Scaling down to {desired} replicas; the remaining pods keep running"
        return Resize(desired, why, new_attempt=False) if desired < known else None
    shortage = _shortage(s)
    if known != desired and shortage is None:
        return Resize(desired, f"Restarting with {desired} replicas: spec.replicas changed", new_attempt=True)
    if known != desired and shortage is not None and s.now >= shortage.retry_at:
        return Resize(desired, f"Retrying with all {desired} replicas", new_attempt=True, shortage=shortage)
    return _shrink(s, shortage)


def excluded(s: Snapshot) -> frozenset[int]:
    """Replicas whose pods are unschedulable and that an elastic job of scope Replica runs without.

    Their pods stay Pending, so that the scheduler binds them once there is capacity. Never replica 0, because
    all other replicas connect to it.
    """
    if s.job.elastic is None or s.scope != REPLICA:
        return frozenset()
    found = frozenset(i for i, pod in s.current.items() if i and _long_unschedulable(s, pod))
    return found if s.size - len(found) >= s.job.min_replicas else frozenset()


def participating(s: Snapshot) -> dict[int, PodView]:
    """Pods of the attempt that the job does not run without."""
    without = excluded(s)
    return {i: pod for i, pod in s.current.items() if i not in without}


def requeue_at(s: Snapshot) -> float | None:
    """When the decision changes by time alone."""
    if s.job.elastic is None or s.memory.finished:
        return None
    moments = [
        s.wall(pod.seen.unschedulable) + SHRINK_AFTER_S
        for pod in s.current.values()
        if pod.seen.unschedulable is not None
    ]
    shortage = _shortage(s)
    if shortage is not None and s.memory.recorded_size != s.job.replicas:
        moments.append(shortage.retry_at)
    return min((moment for moment in moments if moment > s.now), default=None)


def remaining_shortage(s: Snapshot, phase: str) -> Shortage | None:
    """The recorded shortage if no verdict changes it; None once all replicas run."""
    shortage = _shortage(s)
    full = phase == RUNNING and s.memory.recorded_size == s.job.replicas
    return None if full or s.scope == REPLICA or phase == SUSPENDED else shortage


def _shortage(s: Snapshot) -> Shortage | None:
    """The recorded shortage, if it is about the current spec.replicas."""
    shortage = s.memory.private.shortage
    return shortage if shortage is not None and shortage.replicas == s.job.replicas else None


def _long_unschedulable(s: Snapshot, pod: PodView) -> bool:
    """Whether it has been unschedulable for so long that the job stops waiting for it."""
    since = pod.seen.unschedulable
    return since is not None and s.monotonic - since >= SHRINK_AFTER_S


def _shrink(s: Snapshot, shortage: Shortage | None) -> Resize | None:
    """Continue with the pods that were scheduled, once the others were unschedulable for long enough."""
    unplaced = [pod for pod in s.current.values() if not pod.node and pod.phase == "Pending"]
    fits = len(s.current) - len(unplaced)
    decided = not s.missing and all(_long_unschedulable(s, pod) for pod in unplaced)
    if not unplaced or not decided or fits < s.job.min_replicas:
        return None
    tries = shortage.tries + 1 if shortage is not None else 1
    retry_at = int(s.now + min(MAX_RETRY_S, RETRY_S * 2.0 ** min(tries - 1, 30)))
    blocked = f"{len(unplaced)} of {s.size} pods were unschedulable for {SHRINK_AFTER_S:.0f} s"
    return Resize(
        fits,
        f"Restarting with {fits} replicas: {blocked}",
        new_attempt=True,
        shortage=Shortage(replicas=s.job.replicas, tries=tries, retry_at=retry_at),
    )
