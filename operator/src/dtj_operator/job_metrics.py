"""Metrics of jobs: how many there are in which state, and what each written status adds.

Only the leader reconciles, so only the leader has jobs in its table.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from prometheus_client import REGISTRY
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from dtj_operator import metrics
from dtj_operator.engine.newest import Newest
from dtj_operator.model import times
from dtj_operator.model.json import Json
from dtj_operator.model.memory import (
    FAILED,
    FINAL,
    PENDING,
    RECOVERING,
    RUNNING,
    STARTING,
    SUCCEEDED,
    condition,
)
from dtj_operator.model.names import Key
from dtj_operator.plan import blame
from dtj_operator.plan.actions import Fault, Restart, Verdict
from dtj_operator.plan.report.conditions import UNBLOCKED
from dtj_operator.plan.report.decisions import avoided_nodes
from dtj_operator.plan.report.goodput import KINDS, QUEUED, RECOVERY, STARTUP
from dtj_operator.plan.report.status import new_fault
from dtj_operator.plan.snapshot import Snapshot

Added = tuple[Any, tuple[str, ...], float | None]  # metric, labels, seconds to observe; None: count one

ONE_LOSS_S = 600.0  # all jobs on a node notice its loss within this time
REMEMBERED = 1000  # lost nodes
LEFT_NAMESPACES = 200  # whose jobs are all gone and whose counters are still there, to be scraped once more
# Agents report reasons as free text, but each value of a label costs memory in Prometheus.
REASONS = frozenset(
    ("Exception", "ExitCode", "Signal", "OOMKilled", "Hang", "DeviceFault", "PeerLost", "Stopped")
) | {"NodeLost", "Evicted"}
OTHER = "Other"
MOST_RESOURCES = 8  # of a namespace: templates can name any number of them, without a pod that could run
ENDS = {  # phase -> reasons
    SUCCEEDED: ("AllRanksSucceeded", "SuccessPolicy"),
    FAILED: ("RecoveryRule", "RestartBudgetSpent", "NoProgress", "DeadlineExceeded", "BadSpec"),
}


@dataclass
class _Job:
    """What the metrics need of one job.

    blocked   why its pods cannot start, or empty
    avoids    nodes that its new pods avoid
    counted   seconds by state that are in the metric already
    """

    phase: str = ""
    blocked: str = ""
    avoids: set[str] = field(default_factory=set)
    counted: dict[str, int] = field(default_factory=dict)


class JobTable(Collector):
    """The jobs that this process reconciles; Prometheus' client calls `collect` for each scrape."""

    def __init__(self) -> None:
        self._jobs: dict[Key, _Job] = {}
        self._number: Counter[str] = Counter()  # of jobs, by namespace
        self._left: dict[str, None] = {}  # namespaces that no longer have jobs, in order
        self._resources = defaultdict[str, set[str]](set)  # accelerators that have counters, by namespace
        self._lost = Newest[str, float](REMEMBERED)  # node -> when its loss was counted

    def saw(self, key: Key, s: Snapshot, status: Json) -> None:
        """Note the state of a job after a reconcile."""
        known = self._jobs.get(key)
        if known is None:
            known = self._jobs[key] = _Job(counted=_seconds(s.memory.goodput))
            self._number[key.namespace] += 1
            self._left.pop(key.namespace, None)
            _begin_with_0(key.namespace, {self._resource(key.namespace, each) for each in s.job.accelerators})
        ready = condition(status, "PodsReady")
        blocked = ready.get("status") == "False" and ready["reason"] not in UNBLOCKED
        known.phase, known.blocked = status.get("phase", ""), ready["reason"] if blocked else ""
        known.avoids = avoided_nodes(status)

    def forget(self, key: Key) -> None:
        """The job is gone, and maybe its namespace, as where each branch or user has one for a while."""
        if self._jobs.pop(key, None) is None:
            return
        self._number[key.namespace] -= 1
        if not self._number[key.namespace]:
            del self._number[key.namespace]
            self._left[key.namespace] = None
        if len(self._left) > LEFT_NAMESPACES:
            first = next(iter(self._left))
            del self._left[first]
            self._resources.pop(first, None)
            metrics.forget_namespace(first)

    def clear(self) -> None:
        """This process no longer reconciles: kopf has failed, and it may become a follower."""
        for key in tuple(self._jobs):
            self.forget(key)

    def wrote(self, key: Key, s: Snapshot, verdict: Verdict | None, status: Json) -> None:
        """Count what a status that was just written adds."""
        for metric, labels, seconds in added(s, verdict, status):
            child = metric.labels(*labels) if labels else metric
            child.inc() if seconds is None else child.observe(seconds)
        fault = _unrecorded_fault(s, verdict, status)
        if fault is not None and fault.reason == "NodeLost":
            self._count_loss(fault.node, s.monotonic)
        self._count_seconds(key, s, status)

    def collect(self) -> Iterable[Metric]:
        """Yield the gauges."""
        jobs = GaugeMetricFamily("dtj_jobs", "Jobs by phase.", labels=["namespace", "phase"])
        for labels, number in Counter((key.namespace, job.phase) for key, job in self._jobs.items()).items():
            jobs.add_metric(labels, number)
        blocked = GaugeMetricFamily(
            "dtj_jobs_blocked",
            "Jobs whose pods cannot start, by the reason of the condition `PodsReady`.",
            labels=["namespace", "reason"],
        )
        waiting = ((key.namespace, job.blocked) for key, job in self._jobs.items() if job.blocked)
        for labels, number in Counter(waiting).items():
            blocked.add_metric(labels, number)
        avoided = GaugeMetricFamily("dtj_nodes_avoided", "Nodes that at least one job avoids.")
        avoided.add_metric([], len(set[str]().union(*(job.avoids for job in self._jobs.values()))))
        return jobs, blocked, avoided

    def _count_loss(self, node: str, now: float) -> None:
        """Count the loss of a node once, whichever of its jobs reports it first."""
        if now - self._lost.get(node, float("-inf")) >= ONE_LOSS_S:
            self._lost[node] = now
            metrics.NODES_LOST.inc()

    def _count_seconds(self, key: Key, s: Snapshot, status: Json) -> None:
        """Add what is new; productive time that became lost time counts once the total is higher again."""
        known = self._jobs[key]
        for state, seconds in _seconds(status.get("goodput") or {}).items():
            more = seconds - known.counted.get(state, 0)
            if more > 0:
                known.counted[state] = seconds
                for resource, number in s.job.accelerators.items():
                    total, name = more * number * s.size, self._resource(key.namespace, resource)
                    metrics.ACCELERATOR_SECONDS.labels(key.namespace, name, state).inc(total)

    def _resource(self, namespace: str, name: str) -> str:
        """The label for an accelerator."""
        known = self._resources[namespace]
        if name not in known and len(known) >= MOST_RESOURCES:
            return OTHER
        known.add(name)
        return name


def _begin_with_0(namespace: str, resources: Iterable[str]) -> None:
    """Create the counters of a namespace, since increase() does not see the first value of a series."""
    for counted in ("true", "false"):
        metrics.RESTARTS.labels(namespace, counted)
    for reason in (*REASONS, OTHER):
        metrics.FAULTS.labels(namespace, reason)
    for phase, reasons in ENDS.items():
        for reason in reasons:
            metrics.FINISHED.labels(namespace, phase, reason)
    for resource, state in product(resources, _seconds({})):
        metrics.ACCELERATOR_SECONDS.labels(namespace, resource, state)


def added(s: Snapshot, verdict: Verdict | None, new: Json) -> Iterator[Added]:
    """Compare the stored status with the new one."""
    namespace, phase = s.job.namespace, new.get("phase", "")
    if phase in FINAL and not s.memory.finished:
        final = condition(new, "Complete") or condition(new, "Failed")
        yield metrics.FINISHED, (namespace, phase, final.get("reason", OTHER)), None
    if isinstance(verdict, Restart) and not verdict.same_incident:
        yield metrics.RESTARTS, (namespace, str(verdict.counts).lower()), None
    fault = _unrecorded_fault(s, verdict, new)
    if fault is not None:
        yield metrics.FAULTS, (namespace, _label(fault.reason)), None
    is_first_attempt = new.get("attempt") == 0 and not (new.get("restarts") or {}).get("total")
    if is_first_attempt and phase == RUNNING and s.memory.phase in ("", PENDING, STARTING):
        yield metrics.PODS_READY, (), max(0.0, s.now - (s.memory.started_at or s.now))
    # From the account of the agents: this status may be written a minute after the step.
    account, stepped = new.get("goodput"), (new.get("progress") or {}).get("step")
    if is_first_attempt and account and stepped and not s.memory.progress.get("step"):
        yield metrics.FIRST_STEP, (), float(account[QUEUED] + account[STARTUP])
    began = times.parse(s.memory.failure.get("at"))
    if s.memory.phase == RECOVERING and phase == RUNNING and began is not None:
        # status.failure still is the first fault of the incident.
        yield metrics.RECOVERY, (s.scope, _label(s.memory.failure.get("reason"))), max(0.0, s.now - began)
    yield from _healed(s, new)


def _unrecorded_fault(s: Snapshot, verdict: Verdict | None, new: Json) -> Fault | None:
    """The fault that this status records; an unsupported job keeps its stored one, whatever agents report."""
    if new.get("failure") == s.memory.raw.get("failure"):
        return None
    fault = new_fault(s, verdict)
    return None if fault is None or blame.is_known(s, fault) else fault


def _healed(s: Snapshot, new: Json) -> Iterator[Added]:
    """In-place restarts since the last write; each gets an equal part of the time that they took."""
    fault = blame.in_place_fault(s)
    number: int = (new.get("restarts") or {}).get("inPlace", 0) - s.memory.restarts.in_place
    if number > 0 and fault is not None:
        spent: int = (new.get("goodput") or {}).get(RECOVERY, 0) - s.memory.goodput.get(RECOVERY, 0)
        each = metrics.RECOVERY, ("InPlace", _label(fault.reason)), max(0, spent) / number
        yield from (each,) * min(number, 100)


def _label(reason: str | None) -> str:
    return reason if reason in REASONS else OTHER


def _seconds(goodput: Json) -> dict[str, int]:
    """Seconds by state, such as productive."""
    return {kind.removesuffix("Seconds"): goodput.get(kind, 0) for kind in (*KINDS, QUEUED)}


JOBS = JobTable()
REGISTRY.register(JOBS)
