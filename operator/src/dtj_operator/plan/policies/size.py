"""How many replicas should the attempt have?

A user changes `replicas`, or pods stay out: they are unschedulable, or a quota refuses to create them. With
scope Replica only scaling down needs a verdict: the status must record the smaller size before the pods are
deleted, so that they do not count as faults. With scope Job a new size is an attempt that is not counted.

    scope Job, pods stay out:  full size -> 120 s -> the other pods, at least minReplicas
                               -> after 10 minutes (20, 40, ...) the full size again
"""

from dtj_operator.model.children import QUOTA_EXCEEDED
from dtj_operator.model.memory import REPLICA, RUNNING, SUSPENDED
from dtj_operator.model.private import Shortage
from dtj_operator.model.views import PodView
from dtj_operator.plan import queue
from dtj_operator.plan.actions import Resize
from dtj_operator.plan.snapshot import Snapshot

SHRINK_AFTER_S = 120.0  # an elastic job stops waiting for a pod that stays out for so long
RETRY_S = 600.0  # doubles while the full size does not fit, because every try costs a restart
MAX_RETRY_S = 4 * 3600.0


def resize(s: Snapshot) -> Resize | None:
    """Decide on a new size, or None to keep the size."""
    known = s.memory.recorded_size
    if s.job.elastic is None or known is None or queue.is_unknown(s):
        return None
    desired = s.job.replicas
    if s.scope == REPLICA:
        why = f"Scaling down: spec.replicas is {desired} now; the remaining pods keep running"
        return Resize(desired, why, new_attempt=False) if desired < known else None
    shortage = _shortage(s)
    if known != desired:
        if shortage is None:
            return Resize(desired, f"Restarting: spec.replicas is {desired} now", new_attempt=True)
        # A later retry than any is due now: the clock was set back since then.
        if not s.now < shortage.retry_at <= s.now + MAX_RETRY_S:
            why = f"Retrying with all {desired} replicas"
            return Resize(desired, why, new_attempt=True, shortage=shortage)
    return _shrink(s, shortage)


def excluded(s: Snapshot) -> frozenset[int]:
    """Replicas whose pods stay out and that an elastic job of scope Replica runs without.

    A pod stays Pending, so that the scheduler binds it once there is capacity; one that a quota refuses is
    tried again. Never replica 0, because all other replicas connect to it.
    """
    if s.job.elastic is None or s.scope != REPLICA:
        return frozenset()
    unschedulable = {i for i, pod in s.current.items() if _long_unschedulable(s, pod)}
    found = frozenset((unschedulable | _long_refused(s)) - {0})
    return found if s.size - len(found) >= s.job.min_replicas else frozenset()


def participating(s: Snapshot) -> dict[int, PodView]:
    """Pods of the attempt that the job does not run without."""
    without = excluded(s)
    return {i: pod for i, pod in s.current.items() if i not in without}


def requeue_at(s: Snapshot) -> float | None:
    """When the decision changes by time alone."""
    if s.job.elastic is None or s.memory.finished:
        return None
    moments: list[float | None] = [
        s.wall(pod.seen.unschedulable) + SHRINK_AFTER_S
        for pod in s.current.values()
        if pod.seen.unschedulable is not None
    ]
    shortage = _shortage(s)
    if shortage is not None and s.memory.recorded_size != s.job.replicas:
        moments.append(shortage.retry_at)
    return s.next_of(moments)


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


def _long_refused(s: Snapshot) -> frozenset[int]:
    """Replicas whose pods a quota refused when last tried, if the job has waited for them for long enough."""
    since, known = s.memory.changed_at, s.memory.condition("PodsReady")
    # A moment far in the future was recorded before the clock was set back: when it was is unknown.
    waited = since is not None and abs(s.now - since) >= SHRINK_AFTER_S
    refused = known.get("reason") == QUOTA_EXCEEDED and waited
    return frozenset(s.missing) if refused else frozenset()


def _shrink(s: Snapshot, shortage: Shortage | None) -> Resize | None:
    """Continue with the pods that were scheduled, once the others stayed out for long enough."""
    unplaced = [pod for pod in s.current.values() if not pod.node and pod.phase == "Pending"]
    left_out = len(unplaced) + len(s.missing)
    fits = len(s.current) - len(unplaced)
    decided = set(s.missing) <= _long_refused(s) and all(_long_unschedulable(s, pod) for pod in unplaced)
    if not left_out or not decided or fits < s.job.min_replicas:
        return None
    tries = shortage.tries + 1 if shortage is not None else 1
    retry_at = int(s.now + min(MAX_RETRY_S, RETRY_S * 2.0 ** min(tries - 1, 30)))
    blocked = f"{left_out} of {s.size} pods could not start for {SHRINK_AFTER_S:.0f} s"
    return Resize(
        fits,
        f"Restarting with {fits} replicas: {blocked}",
        new_attempt=True,
        shortage=Shortage(replicas=s.job.replicas, tries=tries, retry_at=retry_at),
    )
