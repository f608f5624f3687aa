"""Metrics of jobs: how many there are in which state, and what each written status adds.

Only the leader reconciles, so only the leader has jobs in its table.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field

from prometheus_client import REGISTRY
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from dtj_operator import metrics
from dtj_operator.model.json import Json
from dtj_operator.model.memory import condition
from dtj_operator.model.names import Key
from dtj_operator.plan.actions import Verdict
from dtj_operator.plan.report.conditions import UNBLOCKED
from dtj_operator.plan.report.measures import measures
from dtj_operator.plan.snapshot import Snapshot

STATES = ("productive", "startup", "lost", "recovering", "queued")  # of the seconds in status.goodput
ONE_LOSS_S = 600.0  # all jobs on a node notice its loss within this time
REMEMBERED = 1000  # lost nodes


@dataclass
class _Job:
    """What the metrics need of one job.

    blocked   why its pods cannot start, or empty
    avoids    nodes that its new pods avoid
    counted   seconds by state that are in the metric already
    """

    phase: str = ""
    blocked: str = ""
    avoids: frozenset[str] = frozenset()
    counted: dict[str, int] = field(default_factory=dict)


class JobTable(Collector):
    """The jobs that this process reconciles; Prometheus' client calls `collect` for each scrape."""

    def __init__(self) -> None:
        self._jobs: dict[Key, _Job] = {}
        self._lost: OrderedDict[str, float] = OrderedDict()  # node -> when its loss was counted

    def saw(self, key: Key, s: Snapshot, status: Json) -> None:
        """Note the state of a job after a reconcile."""
        known = self._jobs.get(key)
        if known is None:
            known = self._jobs[key] = _Job(counted=_seconds(s.memory.goodput))
        ready = condition(status, "PodsReady")
        blocked = ready.get("status") == "False" and ready["reason"] not in UNBLOCKED
        known.phase, known.blocked = status.get("phase", ""), ready["reason"] if blocked else ""
        known.avoids = frozenset(e.get("node", "") for e in status.get("avoidedNodes") or () if "until" in e)

    def forget(self, key: Key) -> None:
        """The job is gone."""
        self._jobs.pop(key, None)

    def wrote(self, key: Key, s: Snapshot, verdict: Verdict | None, status: Json) -> None:
        """Count what a status that was just written adds."""
        found, namespace = measures(s, verdict, status), key.namespace
        if found.finished is not None:
            metrics.FINISHED.labels(namespace, *found.finished).inc()
        if found.restarted is not None:
            metrics.RESTARTS.labels(namespace, str(found.restarted).lower()).inc()
        if found.fault:
            metrics.FAULTS.labels(namespace, found.fault).inc()
        if found.lost_node and self._is_first_report(found.lost_node, s.monotonic):
            metrics.NODES_LOST.inc()
        if found.running_s is not None:
            metrics.PODS_READY.observe(found.running_s)
        if found.first_step_s is not None:
            metrics.FIRST_STEP.observe(found.first_step_s)
        for recovery in found.recovered:
            metrics.RECOVERY.labels(recovery.scope, recovery.reason).observe(recovery.seconds)
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
        avoided.add_metric([], len(frozenset().union(*(job.avoids for job in self._jobs.values()))))
        return jobs, blocked, avoided

    def _is_first_report(self, node: str, now: float) -> bool:
        at = self._lost.get(node)
        if at is not None and now - at < ONE_LOSS_S:
            return False
        self._lost[node] = now
        if len(self._lost) > REMEMBERED:
            self._lost.popitem(last=False)
        return True

    def _count_seconds(self, key: Key, s: Snapshot, status: Json) -> None:
        """Add what is new; productive time that became lost time counts once the total is higher again."""
        known = self._jobs[key]
        for state, seconds in _seconds(status.get("goodput") or {}).items():
            more = seconds - known.counted.get(state, 0)
            if more > 0:
                known.counted[state] = seconds
                for resource, number in s.job.accelerators.items():
                    total = more * number * s.size
                    metrics.ACCELERATOR_SECONDS.labels(key.namespace, resource, state).inc(total)


def _seconds(goodput: Json) -> dict[str, int]:
    return {state: goodput.get(f"{state}Seconds", 0) for state in STATES}


JOBS = JobTable()
REGISTRY.register(JOBS)
