"""What a status that was just written adds to the metrics of jobs. Pure: job_metrics.py counts it."""

from dataclasses import dataclass

from dtj_operator.model import times
from dtj_operator.model.json import Json
from dtj_operator.model.memory import FINAL, PENDING, RECOVERING, RUNNING, STARTING
from dtj_operator.plan import blame
from dtj_operator.plan.actions import Fault, Restart, Verdict
from dtj_operator.plan.report.goodput import QUEUED, RECOVERY, STARTUP
from dtj_operator.plan.report.status import new_fault
from dtj_operator.plan.snapshot import Snapshot

IN_PLACE = "InPlace"
# Agents report reasons as free text, but each value of a label costs memory in Prometheus.
FAULTS = frozenset(
    ("Exception", "ExitCode", "Signal", "OOMKilled", "Hang", "PeerLost", "Stopped", "NodeLost", "Evicted")
)
OTHER = "Other"


@dataclass(frozen=True, kw_only=True)
class Recovered:
    """One recovery: what was restarted (Job, Replica, InPlace), after which fault, and how long it took."""

    scope: str
    reason: str
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Measures:
    """Each field is None, empty or zero if this status adds nothing to it.

    finished       phase and reason
    fault          reason of an incident that was not recorded before
    lost_node      name of the node that was lost in this incident
    restarted      whether the restart that begins is counted against the budget
    running_s      seconds until all pods of the job were running
    first_step_s   seconds until the first step of the job
    """

    finished: tuple[str, str] | None = None
    fault: str = ""
    lost_node: str = ""
    restarted: bool | None = None
    running_s: float | None = None
    first_step_s: float | None = None
    recovered: tuple[Recovered, ...] = ()


def measures(s: Snapshot, verdict: Verdict | None, new: Json) -> Measures:
    """Compare the stored status with the new one."""
    # An unsupported job keeps its stored failure, whatever its agents report.
    fault = new_fault(s, verdict) if new.get("failure") != s.memory.raw.get("failure") else None
    new_incident = isinstance(verdict, Restart) and not verdict.same_incident
    return Measures(
        finished=_finished(s, new),
        fault="" if fault is None else _label(fault.reason),
        lost_node=fault.node if fault is not None and fault.reason == "NodeLost" else "",
        restarted=verdict.counts if isinstance(verdict, Restart) and new_incident else None,
        running_s=_running_s(s, new),
        first_step_s=_first_step_s(s, new),
        recovered=(*_recovered(s, new), *_healed(s, new, blame.in_place_fault(s))),
    )


def _label(reason: str | None) -> str:
    return reason if reason in FAULTS else OTHER


def _finished(s: Snapshot, new: Json) -> tuple[str, str] | None:
    if s.memory.finished or new.get("phase") not in FINAL:
        return None
    final = (c["reason"] for c in new["conditions"] if c["type"] in ("Complete", "Failed"))
    return new["phase"], next(final, OTHER)


def _is_first_attempt(new: Json) -> bool:
    return new.get("attempt") == 0 and not (new.get("restarts") or {}).get("total")


def _running_s(s: Snapshot, new: Json) -> float | None:
    before = s.memory.phase in ("", PENDING, STARTING)
    if not before or new.get("phase") != RUNNING or not _is_first_attempt(new):
        return None
    return max(0.0, s.now - (s.memory.started_at or s.now))


def _first_step_s(s: Snapshot, new: Json) -> float | None:
    """From the account of the agents: this status may be written a minute after the step."""
    account, stepped = new.get("goodput"), (new.get("progress") or {}).get("step")
    if not stepped or s.memory.progress.get("step") or not account or not _is_first_attempt(new):
        return None
    return float(account[QUEUED] + account[STARTUP])


def _recovered(s: Snapshot, new: Json) -> tuple[Recovered, ...]:
    """The job left phase Recovering; status.failure still is the first fault of the incident."""
    began = times.parse(s.memory.failure.get("at"))
    if s.memory.phase != RECOVERING or new.get("phase") != RUNNING or began is None:
        return ()
    reason = _label(s.memory.failure.get("reason"))
    return (Recovered(scope=s.scope, reason=reason, seconds=max(0.0, s.now - began)),)


def _healed(s: Snapshot, new: Json, fault: Fault | None) -> tuple[Recovered, ...]:
    """In-place restarts since the last write; each gets an equal part of the time that they took."""
    number: int = (new.get("restarts") or {}).get("inPlace", 0) - s.memory.restarts.in_place
    if number <= 0 or fault is None:
        return ()
    spent: int = (new.get("goodput") or {}).get(RECOVERY, 0) - s.memory.goodput.get(RECOVERY, 0)
    each = Recovered(scope=IN_PLACE, reason=_label(fault.reason), seconds=max(0, spent) / number)
    return (each,) * min(number, 100)
