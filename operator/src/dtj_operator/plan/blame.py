"""Find the first primary cause of an incident in termination messages and container states.

When one rank fails, the other ranks lose their peer moments later. So a cause wins over a consequence, then
the earliest fault, then the lowest index. If the trainer left a JSON report, it is used; for a plain image
the exit code and the tail of the log decide. A report may name the rank of another replica that failed: then
that is a fault of its own, until the pod of that replica reports it.
"""

import re
import signal
from collections.abc import Mapping
from dataclasses import replace

from dtj_operator.model import times
from dtj_operator.model.agent_status import Incident
from dtj_operator.model.exit_report import NO_REPORT, Culprit, ExitReport
from dtj_operator.model.json import Json
from dtj_operator.model.views import ContainerView, PodView
from dtj_operator.plan.actions import Fault, before_launcher, headline, tail
from dtj_operator.plan.isolation import isolated_since
from dtj_operator.plan.snapshot import Snapshot

STOPPED_CODE, PEER_LOST, BAD_RECIPE = 75, 76, 78  # docs/contract.md
MESSAGE_TAIL = 2000  # characters kept in the status: the end of a traceback has the cause

DEVICE_FAULT = "DeviceFault"  # CUDA says that the GPU, or its driver, is broken
_REPORTED = {each: each for each in ("Exception", "Hang", "OOMKilled", DEVICE_FAULT)} | {
    "BadRecipe": "Exception"
}
DELETED_BY_OTHERS = "the pod was deleted (not by the operator)"
RELABELLED = "a label by which the operator finds the pod was changed, so the pod is replaced"
STOPPED = "Stopped"  # the agents stopped all ranks on request
DISRUPTIONS = ("Evicted", "NodeLost")
# The same one again is expected if the program does the same again.
PROGRAM_ERRORS = ("Exception", "ExitCode", "OOMKilled")
# What runc and crun say, behind other words, of a program that they cannot find or execute.
_NO_PROGRAM = re.compile(
    r'exec: "[^"]+":( stat \S+:)? (executable file not found in \$PATH|no such file or directory'
    r"|permission denied|is a directory)|executable file [`'\"]\S+ not found in \$PATH"
)
_PROGRAM_FIX = "correct command or args of that container in spec.template, or its image"
_KILLED_BY_NODE = {"DeletionByTaintManager", "DeletionByPodGC"}
_PEER_PHRASES = re.compile(
    r"connection (reset|closed|refused) by peer|broken pipe|DistNetworkError"
    r"|remote process exited|socket timeout|(gloo|socketPoll).*(no route to host|connection timed out)"
    r"|waiting for clients|RendezvousTimeoutError",  # of torch and torchrun: not all pods came in time
    re.IGNORECASE,
)


def first_fault(s: Snapshot) -> Fault | None:
    """The primary fault among the pods of the current attempt, or None if all are healthy."""
    known = faults(s)
    if known:  # a pod that will be taken away still runs, but its program may have lost the others already
        known += [_fault_of(s, pod, {}) for pod in s.current.values() if _is_marked(s, pod)]
    here = {pod.index for pod in s.owned if not pod.deleting}  # a relabelled pod may still run
    is_one_gone = any(index not in here for index in s.vanished)
    return min(known, key=lambda fault: _order(fault, is_one_gone=is_one_gone), default=None)


def _order(fault: Fault, *, is_one_gone: bool) -> tuple[bool, bool, float, bool, int]:
    """The first of several faults is blamed.

    When a pod vanished is unknown, and a plain program that loses a peer may end with any words.
    """
    is_reported = fault.generation is not None or fault.reported_by is not None
    may_follow = is_one_gone and fault.reason == "ExitCode" and not is_reported
    return fault.secondary, may_follow, fault.at, not fault.disruption, fault.replica


def faults(s: Snapshot) -> list[Fault]:
    """All faults among the pods of the current attempt, also those that only another pod reports yet."""
    isolated = isolated_since(s)
    pods = faulty(s, isolated)
    found = [_fault_of(s, pod, isolated) for pod in pods.values()]
    reports = {index: exit_report(s, pod).culprit for index, pod in pods.items()}
    repeated = {
        culprit.replica: _repeated(s, culprit, reporter)
        for reporter, culprit in reports.items()
        if culprit is not None and culprit.replica not in pods and culprit.replica < s.size
    }
    return found + list(repeated.values()) + [_deleted(s, index) for index in s.vanished]


def faulty(s: Snapshot, isolated: Mapping[int, float]) -> dict[int, PodView]:
    """Pods of the attempt that failed, are being deleted, or are out of reach, by index."""
    return {
        index: pod
        for index, pod in s.current.items()
        if not s.succeeded(pod) and (s.failed(pod) or pod.deleting or index in isolated or s.lost(pod))
    }


def _is_marked(s: Snapshot, pod: PodView) -> bool:
    """Whether Kubernetes says that it ends the pod, which still runs; a kubelet ends pods undeleted."""
    return pod.true("DisruptionTarget") and not (pod.deleting or s.failed(pod) or s.succeeded(pod))


def _fault_of(s: Snapshot, pod: PodView, isolated: Mapping[int, float]) -> Fault:
    """The fault of a faulty pod."""
    lost = s.lost(pod) and not s.failed(pod)
    if not (s.failed(pod) or pod.deleting or lost or _is_marked(s, pod)):
        return _isolated(s, pod, isolated[pod.index])
    ended = _ended(s, pod)
    report = ended.report if ended else NO_REPORT
    # If the kubelet has evicted the pod it says so, and does not see its containers end either.
    is_unseen = ended is not None and ended.is_unseen and not pod.reason
    code = ended.exit_code if ended and not is_unseen else None
    is_of_node = lost or (is_unseen and not pod.deleting)
    taken_away = is_of_node or pod.deleting or pod.true("DisruptionTarget")
    reason, name = ("NodeLost", "") if is_of_node else _classify(pod, ended, report, taken_away=taken_away)
    of_init = ended.name if ended is not None and ended.init and not taken_away else ""
    rank = _only_rank(s, pod.index) if report.rank is None and not of_init else report.rank
    return Fault(
        reason=reason,
        replica=pod.index,
        rank=rank,
        node=pod.node,
        exit_code=code,
        signal=name,
        message=_node_message(s, pod) if lost else _message(s, pod, ended, report),
        at=_moment(s, pod, ended, report),
        generation=report.generation,
        disruption=taken_away,
        init_container=of_init,
        lacks_program=_lacks_program(ended) is not None,
        conditions=tuple((c.type, c.status) for c in pod.conditions),
        exit_codes=tuple(
            (c.name, c.exit_code) for c in pod.containers if c.exit_code is not None and not c.is_unseen
        ),
    )


def _repeated(s: Snapshot, culprit: Culprit, reporter: int) -> Fault:
    """The fault that the pod of another replica reports; the culprit's own pod still runs, or is gone."""
    code = culprit.exit_code
    reason, name = _reported(culprit.reason, _signal_name(code))
    fault = _reported_fault(s, culprit, culprit.replica, reason=reason, exit_code=code, signal_name=name)
    return replace(fault, reported_by=reporter)


def _reported_fault(
    s: Snapshot, by: Culprit | Incident, replica: int, *, reason: str, exit_code: int | None, signal_name: str
) -> Fault:
    """The fault of a rank whose pod has not ended, as other agents report it."""
    pod = s.current.get(replica)
    return Fault(
        reason=reason,
        replica=replica,
        rank=by.rank,
        node=s.last_nodes.get(replica, "") if pod is None else pod.node,
        exit_code=exit_code,
        signal=signal_name,
        message=tail(by.message or "", MESSAGE_TAIL),
        at=_reported_moment(s, by.at) or s.now,
        generation=by.generation,
        exit_codes=() if exit_code is None else ((s.job.trainer, exit_code),),
    )


def _isolated(s: Snapshot, pod: PodView, since: float) -> Fault:
    """The fault of a running pod on a ready node that the other pods get no heartbeats from."""
    return Fault(
        reason="PeerLost",
        replica=pod.index,
        rank=_only_rank(s, pod.index),
        node=pod.node,
        message=_silence(s, pod, since),
        at=since,
    )


def _silence(s: Snapshot, pod: PodView, since: float) -> str:
    """Who has not heard its agent, and for how long."""
    unanswered = s.coordinator_silence
    if pod.index == 0 and unanswered is not None and unanswered.unheard_since is not None:
        who = "neither the operator nor other agents have heard its agent"
        return f"{who} for {s.now - since:.0f} s, but the pod is still running"
    is_first = pod.index not in s.silent_since
    sender = "any other agent" if is_first else "its agent"
    still = "the other pods are still running on several nodes" if is_first else "the pod is still running"
    silent_s = (s.answer.observed_at if s.answer else s.now) - since
    return f"replica 0 has had no heartbeat from {sender} for {silent_s:.0f} s, but {still}"


def is_same_error(fault: Fault, failure: Json) -> bool:
    """Whether the program ended with the same error as in this earlier `status.failure`, on any replica."""
    return (
        fault.reason in PROGRAM_ERRORS
        and (fault.reason, fault.exit_code) == (failure.get("reason"), failure.get("exitCode"))
        # What is said of an OOM kill is not its cause: a step, or the last line of a log.
        and (fault.reason == "OOMKilled" or headline(fault.message) == headline(failure.get("message") or ""))
    )


def is_known(s: Snapshot, fault: Fault) -> bool:
    """Whether this failure is in the status: the agents reported it before their pods ended because of it."""
    known, at = s.memory.failure, times.rfc3339(fault.at)
    found = (known.get("generation"), known.get("replica"), known.get("rank"), known.get("at"))
    return fault.generation is not None and found == (fault.generation, fault.replica, fault.rank, at)


def in_place_fault(s: Snapshot) -> Fault | None:
    """The fault behind the in-place restarts since the agents last answered, if they report it."""
    answer = s.answer
    if answer is None or answer.incident is None or answer.in_place <= s.memory.restarts.in_place_of_attempt:
        return None
    incident = answer.incident
    return _reported_fault(
        s,
        incident,
        incident.replica or 0,
        reason=incident.reason or "ExitCode",
        exit_code=incident.exit_code,
        signal_name=incident.signal or "",
    )


def last_report(s: Snapshot) -> ExitReport:
    """What replica 0 reported when it exited; nothing while it runs."""
    pod = s.current.get(0)
    return NO_REPORT if pod is None else exit_report(s, pod)


def exit_reports(s: Snapshot) -> list[ExitReport]:
    """What the exited ranks of the current attempt report; the exit of replica 0 may be seen last."""
    ended = (pod for pod in s.current.values() if s.succeeded(pod) or s.failed(pod))
    return [report for pod in ended if (report := exit_report(s, pod)) != NO_REPORT]


def run_finished_at(s: Snapshot) -> float | None:
    """When the run finished, by replica 0's exit report: its agent exits once all ranks have finished."""
    pod = s.current.get(0)
    ended = s.trainers.get(pod.uid) if pod is not None and s.succeeded(pod) else None
    if ended is None or ended.report.reason != "Done":
        return None
    return s.now if ended.finished_at is None else min(ended.finished_at, s.now)


def exit_report(s: Snapshot, pod: PodView) -> ExitReport:
    """What the ranks of the pod reported when they exited."""
    trainer = s.trainers.get(pod.uid)
    return trainer.report if trainer else NO_REPORT


def _deleted(s: Snapshot, index: int) -> Fault:
    """The fault of a pod that is gone, or of which a label was changed: it may still run."""
    pod = next((p for p in s.owned if p.index == index and not p.deleting), None)
    return Fault(
        reason="Evicted",
        replica=index,
        rank=_only_rank(s, index),
        node=s.last_nodes.get(index, "") if pod is None else pod.node,
        message=DELETED_BY_OTHERS if pod is None else RELABELLED,
        at=s.now,
        disruption=True,
    )


def _ended(s: Snapshot, pod: PodView) -> ContainerView | None:
    """The container to blame: the trainer if it failed, else the first that failed, init containers first."""
    trainer = s.trainers.get(pod.uid)
    if trainer is not None and trainer.exit_code:
        return trainer
    return next((c for c in pod.containers if c.exit_code), None)


def _classify(
    pod: PodView, ended: ContainerView | None, report: ExitReport, *, taken_away: bool
) -> tuple[str, str]:
    """Return the reason, and the name of the signal or an empty string."""
    code = ended.exit_code if ended else None
    name = _signal_name(code)
    if taken_away:
        disruption = pod.condition("DisruptionTarget")
        lost = disruption is not None and disruption.reason in _KILLED_BY_NODE
        return ("NodeLost" if lost else "Evicted"), name
    if code is None or pod.reason == "Evicted":  # by its kubelet: it never ran, or used too much storage
        return "Evicted", name
    if ended is not None and ended.reason == "OOMKilled":
        return "OOMKilled", name
    if code == PEER_LOST or report.reason == "PeerLost":
        return "PeerLost", name
    if code == STOPPED_CODE and report.reason == STOPPED:
        return STOPPED, ""
    if report == NO_REPORT and not name and ended is not None and _PEER_PHRASES.search(ended.message[-500:]):
        return "PeerLost", ""
    return _reported(report.reason, name)


def _reported(reason: str, signal_name: str) -> tuple[str, str]:
    """Our word for the trainer's reason, and the signal that the kernel or a person sent."""
    known = _REPORTED.get(reason)
    if known:
        return known, "" if known == "Hang" else signal_name  # the agent sent the signal
    return ("Signal" if signal_name else "ExitCode"), signal_name


def _message(s: Snapshot, pod: PodView, ended: ContainerView | None, report: ExitReport) -> str:
    """Why Kubernetes ended the pod, if it says so; else the last words of the container."""
    said = (c.message for c in pod.conditions if (c.type, c.status) == ("DisruptionTarget", "True"))
    why = pod.message or next(said, "") or pod.reason
    last = tail(report.message or before_launcher(ended.message if ended else ""), MESSAGE_TAIL)
    lacks = _lacks_program(ended)
    if ended is not None and ended.is_unseen:
        last = f"container {ended.name} ended unseen, as if its node had restarted"
    elif ended is not None and lacks is not None:
        last = f"container {ended.name} cannot start: {lacks}; {_PROGRAM_FIX}"
    elif ended is not None and ended.init and last:
        last = f"init container {ended.name}:\n{last}"
    elif ended is not None and ended.reason == "OOMKilled" and not report.message:  # and the agent with it
        last = f"{last}\n{_out_of_memory(s, ended)}".strip()
    return tail(why, MESSAGE_TAIL) or last or (DELETED_BY_OTHERS if pod.deleting else "")


def _out_of_memory(s: Snapshot, ended: ContainerView) -> str:
    """What the kernel killed, and how to raise its limit."""
    trainer = s.job.trainer_container
    limits = (trainer.get("resources") or {}).get("limits") or {}
    if ended.name != s.job.trainer or "memory" not in limits:
        return f"container {ended.name} was out of memory"
    return f"out of memory: the memory limit is {limits['memory']}; kubectl dtj submit --memory sets it"


def _lacks_program(ended: ContainerView | None) -> str | None:
    """What the container runtime says of a program that the image does not have."""
    found = _NO_PROGRAM.search(ended.message) if ended is not None and ended.reason == "StartError" else None
    return found and found.group()


def _node_message(s: Snapshot, pod: PodView) -> str:
    expired_s = s.lease_expired_s(pod)
    if expired_s is not None:
        return f"the agent is silent and the node's Lease expired {expired_s:.0f} s ago"
    known = s.nodes is not None and pod.node in s.nodes
    return f"the node was {'NotReady' if known else 'gone'} for {s.job.recovery.node_lost_s} s"


def _only_rank(s: Snapshot, index: int) -> int | None:
    """The rank of a replica, if it has only one."""
    return index if s.job.processes == 1 else None


def _signal_name(code: int | None) -> str:
    if code is None or code <= 128:
        return ""
    try:
        return signal.Signals(code - 128).name
    except ValueError:
        return ""


def _moment(s: Snapshot, pod: PodView, ended: ContainerView | None, report: ExitReport) -> float:
    """When it happened; if the pod was taken away, when that began: others may fail before it has ended."""
    condition = pod.if_true("DisruptionTarget")
    asked = None if pod.grace_ends_at is None else pod.grace_ends_at - pod.grace_s
    began = (asked, None if condition is None else condition.since)
    return min([_end_of(s, pod, ended, report), *(at for at in began if at is not None)])


def _end_of(s: Snapshot, pod: PodView, ended: ContainerView | None, report: ExitReport) -> float:
    """When it ended. The report is more precise than the kubelet, unless it is off by more than a day."""
    reported = _reported_moment(s, report.at)
    if reported is not None:
        return reported
    if ended is not None and ended.finished_at is not None:
        return ended.finished_at
    return min(s.lost_at(pod) or s.now, s.now)


def _reported_moment(s: Snapshot, at: str | None) -> float | None:
    """A moment by the clock of a pod; None if it is missing, or off by more than a day."""
    moment = times.parse(at)
    return moment if moment is not None and abs(moment - s.now) < 86_400 else None
