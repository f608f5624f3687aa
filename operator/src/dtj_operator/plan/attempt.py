"""What the status remembers of the present attempt: its scope, its size, who is being replaced, who is done.

All of it is bounded: a job of 10,000 ranks has a status of the same size as one of two.
"""

from typing import Any

from dtj_operator import names
from dtj_operator.kube.views import PodView
from dtj_operator.plan import ranges, times
from dtj_operator.plan.actions import Lift, Resize, Restart, Resume, Suspend, Trust, Verdict
from dtj_operator.plan.policies import avoid
from dtj_operator.plan.policies.size import kept_shortage
from dtj_operator.plan.snapshot import FINAL, JOB, REPLICA, Shortage, Snapshot

Json = dict[str, Any]

DONE_LIMIT = 1000  # characters; ranks that end one by one in a wild order are not all remembered


def attempt_of(s: Snapshot, verdict: Verdict | None, phase: str) -> Json:
    """The fields of the status that say what the present attempt is."""
    pods = [pod for pod in remaining(s, verdict) if not s.failed(pod)]
    return {
        "recoveryScope": _scope(s, verdict),
        "wantedReplicas": _wanted(s, verdict),
        "currentReplicas": sum(bool(pod.node) or pod.phase != "Pending" for pod in pods),
        "selector": ",".join(f"{k}={v}" for k, v in names.child_labels(s.job.name, s.job.uid).items()),
        "worldSize": (s.size - len(s.left_out)) * s.job.processes,
        **({} if phase in FINAL else _work_in_hand(s, verdict, phase)),
    }


def _work_in_hand(s: Snapshot, verdict: Verdict | None, phase: str) -> Json:
    shortage = verdict.shortage if isinstance(verdict, Resize) else kept_shortage(s, phase)
    return {
        "avoidedNodes": avoid.told(s, verdict) or None,
        "replacing": _replacing(s, verdict) or None,
        "done": ranges.text(done_before(s, verdict), DONE_LIMIT) or None,
        "shortage": None if shortage is None else _told(shortage),
    }


def _told(shortage: Shortage) -> Json:
    again = times.rfc3339(shortage.retry_at)
    return {"replicas": shortage.replicas, "tries": shortage.tries, "retryAt": again}


def begins_anew(verdict: Verdict | None) -> bool:
    """Whether a verdict makes a new attempt."""
    return (isinstance(verdict, Restart) and verdict.of_job) or (
        isinstance(verdict, Resize) and verdict.new_attempt
    )


def remaining(s: Snapshot, verdict: Verdict | None) -> tuple[PodView, ...]:
    """Pods of the attempt that a verdict leaves."""
    if begins_anew(verdict) or isinstance(verdict, Suspend):
        return ()
    gone = dict(verdict.replaces or ()) if isinstance(verdict, Restart | Lift) else {}
    return tuple(pod for index, pod in s.current.items() if index not in gone)


def done_before(s: Snapshot, verdict: Verdict | None) -> frozenset[int]:
    """Replicas that have ended well, whether their pods are still there or not."""
    if begins_anew(verdict) or isinstance(verdict, Suspend | Resume):
        return frozenset()
    known = {index for index in s.memory.done if index < s.size}
    return frozenset(known | {index for index, pod in s.current.items() if s.succeeded(pod)})


def _scope(s: Snapshot, verdict: Verdict | None) -> str:
    """A new attempt begins anew: its agents have not spoken yet."""
    if isinstance(verdict, Trust):
        return REPLICA
    over = s.job.recovery.scope == "Auto" and (begins_anew(verdict) or isinstance(verdict, Suspend))
    return JOB if over else s.scope


def _wanted(s: Snapshot, verdict: Verdict | None) -> int | None:
    """Grows pod by pod, as they come into being: what has not been there yet cannot have vanished."""
    if s.job.elastic is None:
        return None
    if isinstance(verdict, Resize):
        return verdict.size
    if isinstance(verdict, Suspend | Resume) or s.memory.wanted is None:
        return s.job.replicas
    known = min(s.memory.wanted, s.size)
    if begins_anew(verdict) or s.scope != REPLICA:
        return s.size
    while known < s.size and known in s.current:
        known += 1
    return known


def _replacing(s: Snapshot, verdict: Verdict | None) -> list[Json]:
    """Those told to go, each until another pod has taken its place."""
    if begins_anew(verdict) or isinstance(verdict, Suspend):
        return []
    named = {i: uid for i, uid in s.memory.replacing.items() if i < s.size and i not in s.current}
    if isinstance(verdict, Restart | Lift):
        named |= dict(verdict.replaces or ())
    return [{"replica": index, "uid": uid} for index, uid in sorted(named.items())]
