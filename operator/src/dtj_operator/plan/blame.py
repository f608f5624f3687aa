"""Termination messages and container states -> the first primary cause of an incident.

When one rank dies the others lose their peer moments later. So causes come before consequences, then the
earliest wins, then the lowest index. A trainer's JSON report is believed; a plain image is judged by its exit
code and the tail of its log.
"""

import json
import re
import signal
from typing import Any

from dtj_operator.kube.views import ContainerView, PodView
from dtj_operator.plan import times
from dtj_operator.plan.actions import Fault
from dtj_operator.plan.snapshot import Snapshot

STOPPED, PEER_LOST, BAD_RECIPE = 75, 76, 78  # docs/contract.md
MOST_HEALS = 1_000_000  # what says more is no agent
MESSAGE_TAIL = 2000  # characters kept in the status: the end of a traceback says most

_REPORTED = {"Exception": "Exception", "BadRecipe": "Exception", "Hang": "Hang", "OOMKilled": "OOMKilled"}
DELETED_BY_OTHERS = "the pod was deleted (not by the operator)"
DISRUPTIONS = ("Evicted", "NodeLost")
_KILLED_BY_NODE = {"DeletionByTaintManager", "DeletionByPodGC"}
_PEER_PHRASES = re.compile(
    r"connection (reset|closed|refused) by peer|broken pipe|DistNetworkError"
    r"|remote process exited|socket timeout",
    re.IGNORECASE,
)


def first_fault(s: Snapshot) -> Fault | None:
    """The fault to blame among the pods of the current attempt, or None where all is well."""
    found = [fault for pod in s.current.values() if (fault := fault_of(s, pod)) is not None]
    found += [_vanished(s, index) for index in s.vanished]
    return min(found, key=lambda fault: (fault.secondary, fault.at, fault.replica), default=None)


def fault_of(s: Snapshot, pod: PodView) -> Fault | None:
    """What went wrong in one pod, or None."""
    if s.succeeded(pod):
        return None
    ended = _ended(s, pod)
    disruption = pod.condition("DisruptionTarget")
    disrupted = disruption is not None and disruption.status == "True"
    lost = s.lost(pod) and not s.failed(pod)
    if not (s.failed(pod) or pod.deleting or lost):
        return _cut_off(s, pod)
    report = _report(ended)
    code = ended.exit_code if ended else None
    taken_away = pod.deleting or disrupted or lost
    reason, name = ("NodeLost", "") if lost else _classify(pod, ended, report, taken_away=taken_away)
    return Fault(
        reason=reason,
        replica=pod.index,
        rank=_rank(s, pod, report),
        node=pod.node,
        exit_code=code,
        signal=name,
        message=_node_message(s, pod) if lost else _message(pod, ended, report, code),
        at=_moment(s, pod, ended, report),
        generation=_integer(report.get("generation")),
        step=_integer(report.get("step")),
        disruption=taken_away,
        conditions=tuple((c.type, c.status) for c in pod.conditions),
    )


def _cut_off(s: Snapshot, pod: PodView) -> Fault | None:
    """A pod that lives, on a node that is well, and with which packets are not exchanged any more."""
    since, told = s.cut_off.get(pod.index), s.answer
    if since is None or told is None:
        return None
    is_first = pod.index not in s.waited_for_since
    sender = "any other agent" if is_first else "its agent"
    still = "the other pods are still running on several nodes" if is_first else "the pod is still running"
    silent_s = told.observed_at - since
    return Fault(
        reason="PeerLost",
        replica=pod.index,
        rank=pod.index if s.job.processes == 1 else None,
        node=pod.node,
        message=f"replica 0 has had no heartbeat from {sender} for {silent_s:.0f} s, but {still}",
        at=since,
    )


def healed(s: Snapshot) -> Fault | None:
    """What the agents have healed in place since they were last asked, where they say what it was."""
    told = s.answer
    if told is None or told.incident is None or told.in_place <= s.memory.restarts.in_place_now:
        return None
    incident, replica = told.incident, told.incident.replica or 0
    pod = s.current.get(replica)
    at = times.parse(incident.at)
    return Fault(
        reason=incident.reason or "ExitCode",
        replica=replica,
        rank=incident.rank,
        node=pod.node if pod is not None else "",
        exit_code=_integer(incident.exit_code),
        signal=incident.signal or "",
        message=(incident.message or "").strip()[-MESSAGE_TAIL:],
        at=at if at is not None and abs(at - s.now) < 86_400 else s.now,
        generation=incident.generation,
        step=incident.step,
    )


def last_step(s: Snapshot) -> int | None:
    """The last step that replica 0 reported when it ended."""
    return _integer(_last_words(s).get("step"))


def last_in_place(s: Snapshot) -> int:
    """How often the agents had healed in place, by those that ended: replica 0 may be the last to be seen."""
    told = [_integer(_report(s.trainer(pod)).get("inPlace")) or 0 for pod in s.current.values()]
    return max((heals for heals in told if heals <= MOST_HEALS), default=0)


def over_at(s: Snapshot) -> float | None:
    """When the agents' run was over, by replica 0's last words: its agent ends once all ranks are done."""
    pod = s.current.get(0)
    ended = s.trainer(pod) if pod is not None and s.succeeded(pod) else None
    if ended is None or _report(ended).get("reason") != "Done":
        return None
    return s.now if ended.finished_at is None else min(ended.finished_at, s.now)


def _last_words(s: Snapshot) -> dict[str, Any]:
    pod = s.current.get(0)
    return _report(s.trainer(pod)) if pod else {}


def _vanished(s: Snapshot, index: int) -> Fault:
    return Fault(
        reason="Evicted",
        replica=index,
        rank=index if s.job.processes == 1 else None,
        node=s.last_nodes.get(index, ""),
        message=DELETED_BY_OTHERS,
        at=s.now,
        disruption=True,
    )


def _ended(s: Snapshot, pod: PodView) -> ContainerView | None:
    """The container to question: the trainer if it failed, else the first that did, init containers first."""
    trainer = s.trainer(pod)
    if trainer is not None and trainer.exit_code:
        return trainer
    return next((c for c in pod.containers if c.exit_code), None)


def _classify(
    pod: PodView, ended: ContainerView | None, report: dict[str, Any], *, taken_away: bool
) -> tuple[str, str]:
    """(reason, name of the signal or nothing)."""
    code = ended.exit_code if ended else None
    name = _signal_name(code)
    if taken_away:
        disruption = pod.condition("DisruptionTarget")
        lost = disruption is not None and disruption.reason in _KILLED_BY_NODE
        return ("NodeLost" if lost else "Evicted"), name
    if ended is not None and ended.reason == "OOMKilled":
        return "OOMKilled", name
    if code is None:
        return "Evicted", ""
    if code == PEER_LOST or report.get("reason") == "PeerLost":
        return "PeerLost", name
    told = _REPORTED.get(str(report.get("reason")))
    if told:
        return told, "" if told == "Hang" else name  # the signal was the agent's
    if name:
        return "Signal", name
    if not report and ended is not None and _PEER_PHRASES.search(ended.message[-500:]):
        return "PeerLost", ""
    return "ExitCode", ""


def _message(pod: PodView, ended: ContainerView | None, report: dict[str, Any], code: int | None) -> str:
    text = str(report.get("message") or (ended.message if ended else "") or "").strip()
    if not text and pod.deleting:
        text = DELETED_BY_OTHERS
    if not text:
        disruption = pod.condition("DisruptionTarget")
        text = (disruption.message if disruption else "") or pod.message or pod.reason
    if not text and code == STOPPED:
        text = "stopped on request"
    if ended is not None and ended.init:
        text = f"init container {ended.name}: {text}"
    return text[-MESSAGE_TAIL:]


def _node_message(s: Snapshot, pod: PodView) -> str:
    expired_s = s.lease_expired_s(pod)
    if expired_s is not None:
        return f"the agent is silent and the node's Lease expired {expired_s:.0f} s ago"
    known = s.nodes is not None and pod.node in s.nodes
    return f"the node was {'NotReady' if known else 'gone'} for {s.job.recovery.node_lost_s} s"


def _rank(s: Snapshot, pod: PodView, report: dict[str, Any]) -> int | None:
    reported = _integer(report.get("rank"))
    if reported is not None:
        return reported
    return pod.index if s.job.processes == 1 else None


def _report(ended: ContainerView | None) -> dict[str, Any]:
    """The trainer's JSON object, or nothing where the message is plain text."""
    if ended is None or not ended.message.startswith("{"):
        return {}
    try:
        report = json.loads(ended.message)
    except ValueError:
        return {}
    return report if isinstance(report, dict) else {}


def _signal_name(code: int | None) -> str:
    if code is None or code <= 128:
        return ""
    try:
        return signal.Signals(code - 128).name
    except ValueError:
        return ""


def _moment(s: Snapshot, pod: PodView, ended: ContainerView | None, report: dict[str, Any]) -> float:
    """When it happened: the report's word, finer than the kubelet's, unless it lies by more than a day."""
    reported = times.parse(report.get("at"))
    if reported is not None and abs(reported - s.now) < 86_400:
        return reported
    if ended is not None and ended.finished_at is not None:
        return ended.finished_at
    return min(s.lost_at(pod) or s.now, s.now)


def _integer(value: object) -> int | None:
    """A count from somebody else's program, if it is one that the API can hold."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31 else None
