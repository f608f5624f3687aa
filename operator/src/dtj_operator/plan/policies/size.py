"""How many replicas is the attempt to have?

A user changes `replicas`; a cluster runs out of room. With scope Replica neither needs a verdict but one: the
pods of a smaller size must be known to leave on purpose before they are told to go. With scope Job another
size is another attempt, which nobody counts.

    scope Job, room for fewer:  full size -> 120 s without room -> what fits, at least minReplicas
                                -> after 10 minutes (20, 40, ...) the full size again
"""

from dtj_operator.plan.actions import Resize
from dtj_operator.plan.snapshot import (
    REPLICA,
    ROOM_S,
    RUNNING,
    SUSPENDED,
    Shortage,
    Snapshot,
    unschedulable_since,
)

RETRY_S = 600.0  # doubles while the full size does not fit: trying costs a restart
LONGEST_RETRY_S = 4 * 3600.0


def resize(s: Snapshot) -> Resize | None:
    """Decide on another size, or leave it as it is."""
    known = s.memory.wanted
    if s.job.elastic is None or known is None or s.memory.phase in ("", SUSPENDED):
        return None
    wished = s.job.replicas
    if s.scope == REPLICA:
        why = f"Scaling down to {wished} replicas; the remaining pods keep running"
        return Resize(wished, why, new_attempt=False) if wished < known else None
    shortage = _shortage(s)
    if known != wished and shortage is None:
        return Resize(wished, f"Restarting with {wished} replicas: spec.replicas changed", new_attempt=True)
    if known != wished and shortage is not None and s.now >= shortage.retry_at:
        return Resize(wished, f"Retrying with all {wished} replicas", new_attempt=True, shortage=shortage)
    return _shrink(s, shortage)


def look_at(s: Snapshot) -> float | None:
    """When time alone changes the answer."""
    if s.job.elastic is None or s.memory.finished:
        return None
    moments = [
        since + ROOM_S for pod in s.current.values() if (since := unschedulable_since(pod)) is not None
    ]
    shortage = _shortage(s)
    if shortage is not None and s.memory.wanted != s.job.replicas:
        moments.append(shortage.retry_at)
    return min((moment for moment in moments if moment > s.now), default=None)


def kept_shortage(s: Snapshot, phase: str) -> Shortage | None:
    """What is remembered of a lack of room where no verdict changes it: nothing once all run."""
    shortage = _shortage(s)
    full = phase == RUNNING and s.memory.wanted == s.job.replicas
    return None if full or s.scope == REPLICA or phase == SUSPENDED else shortage


def _shortage(s: Snapshot) -> Shortage | None:
    """The lack of room, if it is of the size that is wished for today."""
    shortage = s.memory.shortage
    return shortage if shortage is not None and shortage.replicas == s.job.replicas else None


def _shrink(s: Snapshot, shortage: Shortage | None) -> Resize | None:
    """Go on with what has found room, once the scheduler has had its time with the rest."""
    unplaced = [pod for pod in s.current.values() if not pod.node and pod.phase == "Pending"]
    fits = len(s.current) - len(unplaced)
    decided = not s.missing and all(s.long_unschedulable(pod) for pod in unplaced)
    if not unplaced or not decided or fits < s.job.lowest:
        return None
    tries = shortage.tries + 1 if shortage is not None else 1
    retry_at = s.now + min(LONGEST_RETRY_S, RETRY_S * 2.0 ** min(tries - 1, 30))
    blocked = f"{len(unplaced)} of {s.size} pods were unschedulable for {ROOM_S:.0f} s"
    return Resize(
        fits,
        f"Restarting with {fits} replicas: {blocked}",
        new_attempt=True,
        shortage=Shortage(replicas=s.job.replicas, tries=tries, retry_at=retry_at),
    )
