"""The status that a snapshot and a verdict amount to.

`report` makes the whole status, with the conditions of plan/conditions.py; `events` tells people about it.
Before this stands the planner, after it plan/pace.py, which says when the difference is worth a write.
"""

from typing import Any

from dtj_operator.plan import blame, times
from dtj_operator.plan.actions import Event, Fail, Fault, Restart, Resume, Succeed, Suspend, Verdict
from dtj_operator.plan.conditions import MESSAGE_LIMIT, conditions, obstacle
from dtj_operator.plan.policies.restart import seen
from dtj_operator.plan.snapshot import (
    FAILED,
    PENDING,
    RECOVERING,
    RUNNING,
    STARTING,
    SUCCEEDED,
    SUSPENDED,
    Restarts,
    Snapshot,
)

Json = dict[str, Any]

_PHASE_AFTER: dict[type, str] = {
    Succeed: SUCCEEDED,
    Fail: FAILED,
    Restart: RECOVERING,
    Suspend: SUSPENDED,
    Resume: PENDING,
}


def report(s: Snapshot, verdict: Verdict | None) -> Json:
    """The job's whole status after this look; equal to the stored one where nothing happened."""
    old = s.memory.raw
    if s.memory.finished:
        return {**old, "observedGeneration": s.job.generation}
    phase, attempt = _phase(s, verdict), _attempt(s, verdict)
    moved = phase != s.memory.phase or attempt != s.memory.attempt
    now = times.rfc3339(s.now)
    status = {
        "observedGeneration": s.job.generation,
        "phase": phase,
        "message": _message(s, verdict),
        "ready": _ready(s, verdict),
        "step": _step(_progress(s)),
        "conditions": conditions(s, verdict, phase),
        "startTime": _start_time(s, phase),
        "completionTime": now if phase in (SUCCEEDED, FAILED) else None,
        "lastTransitionTime": now if moved else old.get("lastTransitionTime"),
        "attempt": attempt,
        "replicas": _replicas(s, verdict),
        "worldSize": s.job.world_size if s.job.error is None else None,
        "restarts": _restarts(s, verdict),
        "progress": _progress(s),
        "failure": _failure(s, verdict),
    }
    return {name: value for name, value in status.items() if value is not None}


def _phase(s: Snapshot, verdict: Verdict | None) -> str:
    if verdict is not None and type(verdict) in _PHASE_AFTER:
        return _PHASE_AFTER[type(verdict)]
    if s.memory.phase == SUSPENDED:
        return SUSPENDED
    if s.memory.phase == RUNNING or (not s.missing and all(s.started(pod) for pod in s.current.values())):
        return RUNNING
    if s.memory.phase == RECOVERING:
        return RECOVERING
    return PENDING if s.missing or obstacle(s) else STARTING


def _message(s: Snapshot, verdict: Verdict | None) -> str | None:
    """One sentence for the table that kubectl prints: what the job waits for, or why it ended."""
    match verdict:
        case Fail(_, message):
            return message
        case Restart(fault):
            return fault.sentence
    blocked = obstacle(s)
    if blocked is not None and not isinstance(verdict, Succeed | Suspend):
        return blocked.message[:MESSAGE_LIMIT]
    recovering = verdict is None and s.memory.phase == RECOVERING and _phase(s, verdict) == RECOVERING
    return s.memory.raw.get("message") if recovering else None


def _ready(s: Snapshot, verdict: Verdict | None) -> str | None:
    """Pods that are ready or done / replicas."""
    if s.job.error is not None:
        return None
    counts = _replicas(s, verdict)
    return f"{counts['ready'] + counts['succeeded']}/{s.job.replicas}"


def _step(progress: Json | None) -> str | None:
    step, total = (progress or {}).get("step"), (progress or {}).get("totalSteps")
    if step is None:
        return None
    return str(step) if total is None else f"{step}/{total}"


def _attempt(s: Snapshot, verdict: Verdict | None) -> int:
    """A suspension ends an attempt too: whatever remains of it is old from then on."""
    over = isinstance(verdict, Restart) or (isinstance(verdict, Suspend) and bool(s.ours))
    return s.memory.attempt + over


def _start_time(s: Snapshot, phase: str) -> str | None:
    """Since when the job is active; a suspension ends that."""
    if phase == SUSPENDED:
        return None
    return s.memory.raw.get("startTime") or times.rfc3339(s.now)


def _replicas(s: Snapshot, verdict: Verdict | None) -> Json:
    pods = () if isinstance(verdict, Restart | Suspend) else tuple(s.current.values())
    succeeded = sum(s.succeeded(pod) for pod in pods)
    failed = sum(s.failed(pod) for pod in pods)
    ready = sum(pod.ready and not s.failed(pod) for pod in pods)
    return {
        "ready": ready,
        "active": len(pods) - succeeded - failed,
        "succeeded": succeeded,
        "failed": failed,
    }


def _restarts(s: Snapshot, verdict: Verdict | None) -> Json:
    now = seen(s)
    counted = isinstance(verdict, Restart) and verdict.counts
    uncounted = isinstance(verdict, Restart) and not verdict.counts
    after = Restarts(
        counted=now.counted + counted,
        disruptions=now.disruptions + uncounted,
        without_progress=now.without_progress + counted,
        highest_step=now.highest_step,
    )
    told = {
        "total": after.counted + after.disruptions,
        "counted": after.counted,
        "disruptions": after.disruptions,
        "withoutProgress": after.without_progress,
    }
    return told if after.highest_step is None else {**told, "highestStep": after.highest_step}


def _progress(s: Snapshot) -> Json | None:
    """What the agent said last; once replica 0 has ended, the step of its report."""
    told = dict(s.memory.progress)
    fresh = s.progress
    if fresh is not None and fresh.attempt == s.memory.attempt:
        told = {
            "step": fresh.step,
            "totalSteps": fresh.total_steps,
            "epoch": fresh.epoch,
            "loss": _decimal(fresh.loss),
            "samplesPerSecond": _decimal(fresh.samples_per_second),
            "eta": None if fresh.eta_s is None else times.rfc3339(fresh.observed_at + fresh.eta_s),
            "observedAt": times.rfc3339(fresh.observed_at),
        }
    last = blame.last_step(s)
    if last is not None and last >= (told.get("step") or 0) and last != told.get("step"):
        told |= {"step": last, "eta": None, "observedAt": times.rfc3339(s.now)}
    return {name: value for name, value in told.items() if value is not None} or None


def _decimal(value: float | None) -> str | None:
    """Numbers of the API conventions are strings: floats do not survive every client."""
    return None if value is None else f"{value:.4g}"


def _failure(s: Snapshot, verdict: Verdict | None) -> Json | None:
    """The last incident; it stays after recovery."""
    fault = verdict.fault if isinstance(verdict, Restart | Fail) else None
    return s.memory.failure or None if fault is None else _told(fault)


def _told(fault: Fault) -> Json:
    told: Json = {
        "rank": fault.rank,
        "replica": fault.replica,
        "node": fault.node or None,
        "reason": fault.reason,
        "exitCode": fault.exit_code,
        "signal": fault.signal or None,
        "message": fault.message or None,
        "at": times.rfc3339(fault.at),
        "generation": fault.generation,
    }
    return {name: value for name, value in told.items() if value is not None}


def events(s: Snapshot, verdict: Verdict | None, new: Json) -> tuple[Event, ...]:
    """What people should hear about, once it is written down."""
    attempt = str(new.get("attempt", 0))
    match verdict:
        case Succeed(reason):
            return (Event("Normal", "Completed", f"all done: {reason}", attempt),)
        case Fail(reason, message):
            return (Event("Warning", reason, message, attempt),)
        case Restart(fault, counts):
            kind = "restart" if counts else "restart outside the budget"
            return (Event("Warning", "Restarting", f"attempt {attempt}, {kind}: {fault.sentence}", attempt),)
        case Suspend():
            return (Event("Normal", "Suspended", "pods are being stopped, spec.suspend is true", attempt),)
        case Resume():
            return (Event("Normal", "Resumed", f"attempt {attempt} begins", attempt),)
    blocked = obstacle(s)
    known = s.memory.condition("PodsReady") or {}
    if blocked is None or s.memory.finished or known.get("reason") == blocked.reason:
        return ()
    return (Event("Warning", blocked.reason, blocked.message, f"{attempt}/{blocked.reason}"),)
