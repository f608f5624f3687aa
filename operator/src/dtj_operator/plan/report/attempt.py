"""What the status records of the current attempt: scope, size, pods being replaced, finished replicas."""

import msgspec

from dtj_operator.model import names, ranges
from dtj_operator.model.json import Json
from dtj_operator.model.memory import FINAL, REPLICA, RUNNING, Restarts
from dtj_operator.model.private import Private
from dtj_operator.model.views import PodView
from dtj_operator.plan.actions import (
    Recreate,
    Resize,
    Restart,
    Resume,
    Suspend,
    Verdict,
    ends_attempt,
    starts_new_attempt,
)
from dtj_operator.plan.policies import avoid
from dtj_operator.plan.policies.size import excluded, remaining_shortage
from dtj_operator.plan.snapshot import Snapshot

MAX_DOMAINS = 20  # in the status
DONE_LIMIT = 35_000  # characters; all of 10,000 replicas fit, in whatever order they finish


def attempt_of(s: Snapshot, verdict: Verdict | None, phase: str) -> Json:
    """The status fields of the current attempt."""
    pods = [pod for pod in remaining(s, verdict) if not s.failed(pod)]
    return {
        "replicas": sum(bool(pod.node) or pod.phase != "Pending" for pod in pods),
        "selector": ",".join(f"{k}={v}" for k, v in names.child_labels(s.job.name, s.job.uid).items()),
        "domains": _domains(s, pods, phase) or None,
        "worldSize": _world_size(s, phase),
        "avoidedNodes": None if phase in FINAL else avoid.status_entries(s, verdict) or None,
    }


def _domains(s: Snapshot, pods: list[PodView], phase: str) -> list[str]:
    """Where its pods are, if the job asks for one domain; as last known if that cannot be read."""
    if s.job.topology is None:
        return []
    if s.nodes is None or phase in FINAL:
        return s.memory.raw.get("domains") or []
    labels = [node.labels for pod in pods if (node := s.nodes.get(pod.node)) is not None]
    return sorted({each[s.job.topology.key] for each in labels if s.job.topology.key in each})[:MAX_DOMAINS]


def _world_size(s: Snapshot, phase: str) -> int:
    """The agents of an elastic job may continue without a replica whose pod still runs."""
    most = (s.size - len(excluded(s))) * s.job.processes
    if s.job.elastic is None or phase != RUNNING:
        return most
    reported = s.answer.world_size if s.answer else _known_world_size(s)
    return min(reported, most) if reported else most


def _known_world_size(s: Snapshot) -> int | None:
    """The stored one, until an agent answers this process or all pods of a job without agents run."""
    may_be_smaller = s.has_answered or not all(s.started(pod) for pod in s.current.values())
    return s.memory.raw.get("worldSize") if s.memory.phase == RUNNING and may_be_smaller else None


def private_of(
    s: Snapshot, verdict: Verdict | None, phase: str, *, counts: Restarts, earlier_seconds: dict[str, int]
) -> Private:
    """What only the operator needs to know of the job."""
    lasting = Private(
        wanted_replicas=_recorded_size(s, verdict),
        earlier_seconds=earlier_seconds,
        **counts.counters(),
    )
    if phase in FINAL:
        return lasting
    return msgspec.structs.replace(
        lasting,
        rejoins=s.rejoins and not ends_attempt(verdict),  # agents of the next attempt have to say it again
        replacing=_replacing(s, verdict),
        done=ranges.text(done_before(s, verdict), DONE_LIMIT),
        shortage=verdict.shortage if isinstance(verdict, Resize) else remaining_shortage(s, phase),
    )


def remaining(s: Snapshot, verdict: Verdict | None) -> tuple[PodView, ...]:
    """Pods of the attempt that remain after the verdict."""
    if ends_attempt(verdict):
        return ()
    gone = dict(verdict.replaces or ()) if isinstance(verdict, Restart | Recreate) else {}
    return tuple(pod for index, pod in s.current.items() if index not in gone)


def done_before(s: Snapshot, verdict: Verdict | None) -> frozenset[int]:
    """Replicas that have succeeded, whether their pods still exist or not."""
    if ends_attempt(verdict) or isinstance(verdict, Resume):
        return frozenset()
    known = {index for index in s.memory.done if index < s.size}
    return frozenset(known | {index for index, pod in s.current.items() if s.succeeded(pod)})


def _recorded_size(s: Snapshot, verdict: Verdict | None) -> int | None:
    """Grows with every pod that is created: a pod that never existed cannot have vanished."""
    if s.job.elastic is None:
        return None
    if isinstance(verdict, Resize):
        return verdict.size
    if isinstance(verdict, Suspend | Resume) or s.memory.recorded_size is None:
        return s.job.replicas
    known = min(s.memory.recorded_size, s.size)
    if starts_new_attempt(verdict) or s.scope != REPLICA:
        return s.size
    while known < s.size and known in s.current:
        known += 1
    return known


def _replacing(s: Snapshot, verdict: Verdict | None) -> dict[int, str]:
    """Pods being replaced, each until another pod has taken its place."""
    if ends_attempt(verdict):
        return {}
    named = {i: uid for i, uid in s.memory.private.replacing.items() if i < s.size and i not in s.current}
    if isinstance(verdict, Restart | Recreate):
        named |= dict(verdict.replaces or ())
    return dict(sorted(named.items()))
