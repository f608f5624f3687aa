"""Big jobs in several states, and everything that the operator computes when it reconciles one of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from dtj_operator.model import times
from dtj_operator.model.agent_status import SilentReplica
from dtj_operator.model.views import ConditionView, NodeLease, NodeView
from dtj_operator.plan.planner import plan
from dtj_operator.plan.report import pace
from dtj_operator.plan.report.status import events, new_status
from dtj_operator.plan.snapshot import Snapshot
from tests.support.builders import NOW, JobBuilder, PodBuilder, at, job, pod

ADDRESS = "10.0.0.1"  # of replica 0
PODS_PER_NODE = 8
TRACEBACK = "x" * 3400  # characters; the kubelet keeps 4,096 bytes of a termination message
_CONDITIONS = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")


def decide(s: Snapshot) -> dict[str, Any]:
    """Compute what a reconcile computes, without its I/O; return the new status."""
    decision = plan(s)
    after = s.after(tuple(s.pods), decision.refusal)
    status = new_status(after, decision.verdict)
    pace.write_at(s.memory.raw, status, now=s.now, last_write=0, progress_due=True)
    pace.only_progress(s.memory.raw, status)
    events(after, decision.verdict, status)
    return status


def running(pods: int, nodes: int | None = None) -> JobBuilder:
    """All pods run, the agents answer, and the status is up to date."""
    up = (_up(index) for index in range(pods))
    base = job().replicas(pods).with_network().was("Running", memory={"rejoins": True}).having(*up)
    seen = base.seeing(nodes=_nodes(nodes or _count(pods)))
    seen = seen.answering(step=7, total_steps=100, address=ADDRESS)
    return seen.stored(new_status(seen.snapshot(), None))


def failed(pods: int) -> JobBuilder:
    """All ranks of a running job have failed and left a report with a long traceback."""
    reports = (_up(i).reported(1, reason="Exception", message=TRACEBACK, rank=i, step=7) for i in range(pods))
    return running(pods).but(*reports)


def new(pods: int, nodes: int | None = None) -> JobBuilder:
    """No pod exists yet, and one node is to be avoided."""
    bad = [{"node": "node-0", "faults": 3, "at": at(-60)}]
    base = job().replicas(pods).with_network().recovery(avoidNodeAfterFaults=2)
    return base.was("Pending", avoidedNodes=bad).seeing(nodes=_nodes(nodes or _count(pods)))


def silent(pods: int) -> JobBuilder:
    """No agent but the first is heard, and no Lease is renewed: a network that was cut."""
    unheard = tuple(SilentReplica(replica=index, seconds=30) for index in range(1, pods))
    lease = NodeLease(renewed_at=NOW - 30, duration_s=40, unchanged_s=30)
    built = running(pods).answering(step=7, address=ADDRESS, missing=unheard)
    return built.seeing(leases=dict.fromkeys(_nodes(_count(pods)), lease))


JOBS: dict[str, Callable[[int], JobBuilder]] = {
    "running": running,
    "failed": failed,
    "new": new,
    "silent": silent,
}


def _count(pods: int) -> int:
    return -(-pods // PODS_PER_NODE)


def _nodes(count: int) -> dict[str, NodeView]:
    return {f"node-{i}": NodeView(name=f"node-{i}", labels={"zone": "a"}) for i in range(count)}


def _up(index: int) -> PodBuilder:
    conditions = tuple(
        ConditionView(type=kind, status="True", last_transition_time=times.rfc3339(NOW - 50))
        for kind in _CONDITIONS
    )
    up = pod(index).running().on(f"node-{index // PODS_PER_NODE}").reachable(ADDRESS if index == 0 else "")
    return PodBuilder(msgspec.structs.replace(up.pod, conditions=conditions))
