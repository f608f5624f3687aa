"""The new status, computed from a snapshot and a verdict.

`new_status` builds the whole status, with the conditions of conditions.py; `events` derives the Events.
The planner runs before this; pace.py runs after it and decides when to write the difference.
"""

from dtj_operator.model import private, times
from dtj_operator.model.agent_status import Progress
from dtj_operator.model.children import Refusal
from dtj_operator.model.exit_report import ExitReport
from dtj_operator.model.json import Json, without_none
from dtj_operator.model.memory import (
    FAILED,
    FINAL,
    PENDING,
    RECOVERING,
    RUNNING,
    STARTING,
    SUCCEEDED,
    SUSPENDED,
    TERMINATING,
    Restarts,
    condition,
)
from dtj_operator.plan import blame, queue, starting
from dtj_operator.plan.actions import (
    AllowNodes,
    Event,
    Fail,
    Fault,
    Resize,
    Restart,
    Resume,
    Succeed,
    Suspend,
    Ungroup,
    Verdict,
    starts_new_attempt,
    tail,
)
from dtj_operator.plan.cautions import cautions
from dtj_operator.plan.policies.restart import counters_after
from dtj_operator.plan.policies.size import excluded, participating
from dtj_operator.plan.remote import has_copy
from dtj_operator.plan.report.attempt import attempt_of, done_before, private_of, remaining
from dtj_operator.plan.report.conditions import (
    CONDITION_MESSAGE_LIMIT,
    UNBLOCKED,
    conditions,
    ending,
    held_back,
    obstacle,
    pods_are,
    rejected,
    shortage,
    terminating,
)
from dtj_operator.plan.report.degraded import REASONS as DEGRADED
from dtj_operator.plan.report.goodput import goodput
from dtj_operator.plan.snapshot import Snapshot
from dtj_operator.plan.unsupported import REASON as UNSUPPORTED
from dtj_operator.plan.unsupported import unsupported

MAX_FAILURES = 5  # in status.failures
FAILURE_TAIL = 500  # characters of each message there; status.failure has more

_PHASE_AFTER: dict[type, str] = {
    Succeed: SUCCEEDED,
    Fail: FAILED,
    Restart: RECOVERING,
    Suspend: SUSPENDED,
    Resume: PENDING,
}


def new_status(s: Snapshot, verdict: Verdict | None) -> Json:
    """The job's whole status after this reconcile; equal to the stored one if nothing happened."""
    old = s.memory.raw
    if s.memory.finished:
        return {
            **old,
            "observedGeneration": s.job.generation,
            # `kubectl wait` ignores conditions of an earlier generation.
            "conditions": [
                {**each, "observedGeneration": s.job.generation} for each in old.get("conditions") or ()
            ],
        }
    if has_copy(s):
        return old
    if s.job.deleting:
        return old | _while_deleted(s)
    problem = unsupported(s)
    if problem is not None:
        return {
            **old,
            "observedGeneration": s.job.generation,
            "message": problem[:CONDITION_MESSAGE_LIMIT],
            "conditions": rejected(s, problem),
        }
    # A suspension ends the attempt too, if there is one: its pods count as old from then on.
    stopped = isinstance(verdict, Suspend) and bool(s.memory.phase or s.owned)
    phase, attempt = _phase(s, verdict), s.memory.attempt + (starts_new_attempt(verdict) or stopped)
    blocked = obstacle(s, verdict, phase)
    if phase == STARTING and blocked is not None:
        phase = PENDING
    found = conditions(s, verdict, phase, blocked)
    moved = phase != s.memory.phase or isinstance(verdict, Restart) or attempt != s.memory.attempt
    at, replicas, progress = times.rfc3339(s.now), _replicas(s, verdict), _progress(s)
    counts = counters_after(s, verdict)
    fault = new_fault(s, verdict)
    account, earlier = goodput(s, verdict, moved=moved)
    status = {
        "observedGeneration": s.job.generation,
        "phase": phase,
        "message": _message(s, verdict, phase, blocked, condition({"conditions": found}, "Healthy")),
        "ready": None if s.job.error else f"{replicas['ready'] + replicas['succeeded']}/{s.job.replicas}",
        "step": _step(progress),
        "conditions": found,
        "startTime": None if phase == SUSPENDED else old.get("startTime") or at,
        "completionTime": at if phase in FINAL else None,
        "lastTransitionTime": at if moved else old.get("lastTransitionTime"),
        "attempt": attempt,
        "replicaStatuses": replicas,
        "restarts": _restarts(counts),
        "progress": progress,
        "goodput": account,
        "failure": s.memory.failure or None if fault is None else _failure_fields(fault),
        "failures": _failures(s, fault) or None,
    }
    if s.job.error is None:
        memory = private_of(s, verdict, phase, counts=counts, earlier_seconds=earlier)
        status |= {**attempt_of(s, verdict, phase), "memory": private.write(memory) or None}
    return without_none(status)


def _while_deleted(s: Snapshot) -> Json:
    """Of a job that is still there because of a finalizer."""
    kept = f"it has the finalizer {', '.join(s.job.finalizers)}, which another controller must remove"
    blocked = obstacle(s, None, TERMINATING)
    message = f"the job is being deleted; {blocked.message if blocked else ending(s) or kept}"
    replicas, at = _replicas(s, None), times.rfc3339(s.now)
    moved = s.memory.phase != TERMINATING
    return {
        "observedGeneration": s.job.generation,
        "phase": TERMINATING,
        "message": message[:CONDITION_MESSAGE_LIMIT],
        "ready": f"{replicas['ready'] + replicas['succeeded']}/{s.job.replicas}",
        "conditions": terminating(s, blocked, message),
        "lastTransitionTime": at if moved else s.memory.raw.get("lastTransitionTime") or at,
        "replicaStatuses": replicas,
    }


def _phase(s: Snapshot, verdict: Verdict | None) -> str:
    if isinstance(verdict, Resize) and verdict.new_attempt:
        return PENDING
    if after := _PHASE_AFTER.get(type(verdict)):
        return after
    if s.memory.phase in (SUSPENDED, RUNNING):
        return s.memory.phase
    if set(s.missing) <= excluded(s) and all(s.started(pod) for pod in participating(s).values()):
        return RUNNING
    if s.memory.phase == RECOVERING:
        return RECOVERING
    return PENDING if s.missing else STARTING


def _message(
    s: Snapshot, verdict: Verdict | None, phase: str, blocked: Refusal | None, healthy: Json
) -> str | None:
    """One sentence for the table of `kubectl get`: what the job waits for, what is wrong, or why it ended."""
    wrong = healthy.get("message") if healthy.get("status") == "False" else None
    match verdict:
        case Fail() | Restart(same_incident=False):
            return wrong
        case Resize(_, why, True):
            return why
    if blocked is not None:
        return blocked.message[:CONDITION_MESSAGE_LIMIT]
    if phase in (SUSPENDED, SUCCEEDED):
        return ending(s) if phase == SUSPENDED else None
    return wrong or shortage(s) or held_back(s) or starting.noted(s)


def _step(progress: Json | None) -> str | None:
    step, total = (progress or {}).get("step"), (progress or {}).get("totalSteps")
    if step is None:
        return None
    return str(step) if total is None else f"{step}/{total}"


def _replicas(s: Snapshot, verdict: Verdict | None) -> Json:
    pods = remaining(s, verdict)
    succeeded = [pod for pod in pods if s.succeeded(pod)]
    failed = sum(s.failed(pod) for pod in pods)
    return {
        "ready": sum(pod.ready and not s.failed(pod) for pod in pods),
        "active": len(pods) - len(succeeded) - failed,
        "succeeded": len({pod.index for pod in succeeded} | done_before(s, verdict)),
        "failed": failed,
    }


def _restarts(counts: Restarts) -> Json:
    fields = {
        "total": counts.counted + counts.disruptions,
        "counted": counts.counted,
        "disruptions": counts.disruptions,
        "withoutProgress": counts.without_progress,
    }
    return fields | ({"inPlace": counts.in_place} if counts.in_place else {})


def _progress(s: Snapshot) -> Json | None:
    """The agent's last answer; once replica 0 has exited, its exit report if that is newer.

    After a restart the known step stays until the agent reports one.
    """
    fields = before = dict(s.memory.progress)
    answer = s.answer
    if answer is not None and (answer.step is not None or "step" not in fields):
        fields = _position(answer) | {
            "eta": None if answer.eta_s is None else times.rfc3339(answer.observed_at + answer.eta_s),
            "observedAt": times.rfc3339(answer.observed_at),
        }
    last, step = blame.last_report(s), fields.get("step")
    if last.step is not None and (step is None or last.step > step):
        fields |= without_none(_position(last)) | {"eta": None, "observedAt": times.rfc3339(s.now)}
    if fields.get("step") is not None:
        is_same = fields["step"] == before.get("step")
        first_read = before.get("stepAt") if is_same else None
        fields["stepAt"] = first_read or fields.get("observedAt")
    return without_none(fields) or None


def _position(found: Progress | ExitReport) -> Json:
    return {
        "step": found.step,
        "totalSteps": found.total_steps,
        "epoch": found.epoch,
        "loss": _decimal(found.loss),
        "samplesPerSecond": _decimal(found.samples_per_second),
    }


def _decimal(value: float | None) -> str | None:
    """The API conventions want fractions as strings, because floats do not survive every client."""
    return None if value is None else f"{value:.4g}"


def new_fault(s: Snapshot, verdict: Verdict | None) -> Fault | None:
    """The fault of an incident that is not recorded yet."""
    if isinstance(verdict, Restart) and verdict.same_incident:
        return None
    return (verdict.fault if isinstance(verdict, Restart | Fail) else None) or blame.in_place_fault(s)


def _failures(s: Snapshot, fault: Fault | None) -> list[Json]:
    """The last incidents, latest first, each with the end of its message only."""
    known: list[Json] = s.memory.raw.get("failures") or []
    if fault is None:
        return known
    latest = {"attempt": s.memory.attempt, **_failure_fields(fault)}
    if fault.message:
        latest["message"] = tail(fault.message, FAILURE_TAIL)
    return [latest, *(known[1:] if blame.is_known(s, fault) else known)][:MAX_FAILURES]


def _failure_fields(fault: Fault) -> Json:
    fields = {
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
    return without_none(fields)


def events(s: Snapshot, verdict: Verdict | None, new: Json) -> tuple[Event, ...]:
    """The Events to record once the status is written."""
    attempt = str(new.get("attempt", 0))
    found: list[Event | None]
    if s.job.deleting:
        found = [_obstacle_event(s, None, attempt, new)]
    elif problem := unsupported(s):
        found = [Event("Warning", UNSUPPORTED, problem, problem)]
    else:
        found = [
            _in_place_event(s, new),
            _event(verdict, attempt, new),
            _world_event(s, verdict, attempt, new),
            _degraded_event(s, attempt, new),
            _obstacle_event(s, verdict, attempt, new),
            *_caution_events(s, attempt, new),
        ]
    return tuple(event for event in found if event is not None)


def _obstacle_event(s: Snapshot, verdict: Verdict | None, attempt: str, new: Json) -> Event | None:
    """One Event for each reason that PodsReady did not have; that of the queue is in the verdict's Event."""
    found = obstacle(s, verdict, new.get("phase", ""))
    known = (s.memory.condition("PodsReady").get("reason"), getattr(verdict, "reason", None), *UNBLOCKED)
    if found is None or found.reason in known:
        return None
    return Event("Warning", found.reason, found.message, f"{attempt}/{found.reason}")


def _in_place_event(s: Snapshot, new: Json) -> Event | None:
    number = (new.get("restarts") or {}).get("inPlace", 0)
    healed = number - s.memory.restarts.in_place
    if healed <= 0:
        return None
    fault = blame.in_place_fault(s)
    what = f"; last: {fault.sentence}" if fault else ""
    return Event("Warning", "RestartedInPlace", f"{_count(healed, 'in-place restart')}{what}", str(number))


def _world_event(s: Snapshot, verdict: Verdict | None, attempt: str, new: Json) -> Event | None:
    """The agents of an elastic job continue with more or fewer ranks; a new attempt has its own Event."""
    before, now = s.memory.raw.get("worldSize", 0), new.get("worldSize", 0)
    trains = s.memory.phase == new.get("phase") == RUNNING and new.get("attempt") == s.memory.attempt
    if s.job.elastic is None or not trains or verdict is not None or before in (0, now):
        return None
    what = f"the job trains with {_count(now, 'rank')} now, before with {before}"
    return Event("Normal", "Resized", what, f"{attempt}/{before}-{now}")


def _caution_events(s: Snapshot, attempt: str, new: Json) -> list[Event]:
    """One Event for each caution that the condition has not shown yet."""
    ready = condition(new, "PodsReady")
    before = s.memory.condition("PodsReady").get("message", "")
    return [
        Event("Warning", caution.reason, caution.message, f"{attempt}/{caution.reason}")
        for caution in cautions(s)
        if caution.message in ready.get("message", "")
        and caution.message not in before
        and caution.reason != ready.get("reason")  # else it is the obstacle, which has its Event
    ]


def _degraded_event(s: Snapshot, attempt: str, new: Json) -> Event | None:
    """One Event per incident; its message stays the same until it is over."""
    healthy, known = condition(new, "Healthy"), s.memory.condition("Healthy")
    if healthy.get("reason") not in DEGRADED or healthy.get("message") == known.get("message"):
        return None
    return Event("Warning", healthy["reason"], healthy["message"], f"{attempt}/{healthy['message']}")


def _event(verdict: Verdict | None, attempt: str, new: Json) -> Event | None:
    """The Event about the verdict; some are not worth one."""
    match verdict:
        case Succeed(reason):
            event = Event("Normal", "Completed", f"Job succeeded: {reason}", attempt)
        case Fail(reason, message):
            event = Event("Warning", reason, message, attempt)
        case Restart(fault, counts, replaces, same_incident=False):
            what = "all pods" if replaces is None else _count(len(replaces), "pod")
            which = f"attempt {attempt}" if counts else f"attempt {attempt}, not counted"
            number = f"{attempt}/{new['restarts']['total']}"
            event = Event("Warning", "Restarting", f"Restarting {what} ({which}): {fault.sentence}", number)
        case Resize(size, why):
            event = Event("Normal", "Resized", why, f"{attempt}/{size}")
        case AllowNodes(replaces):
            why = "unschedulable while avoiding faulty nodes; the job now only prefers other nodes"
            event = Event("Normal", "NodesAllowed", f"{pods_are(len(replaces))} {why}", attempt)
        case Ungroup(replaces):
            why = "recreated without a PodGroup: the job's can no longer have all its pods"
            event = Event("Normal", "Ungrouped", f"{pods_are(len(replaces))} {why}", attempt)
        case Suspend(reason, message):
            needs_help = reason in (queue.UNAVAILABLE, queue.INADMISSIBLE)
            what = message if needs_help or reason == queue.QUEUED else f"Stopping all pods: {message}"
            event = Event("Warning" if needs_help else "Normal", reason, what, attempt)
        case Resume(message):
            event = Event("Normal", "Resumed", f"Starting attempt {attempt}: {message}", attempt)
        case _:
            return None
    return event


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")
