"""How the operator reacted to failed ranks, by the clock of the API server: from its audit log.

So the times have neither the delays of the benchmark's own process nor those of its watches.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Any

from tests.integration.controlplane import OPERATOR_USER

STAGES = (
    "failure recorded -> operator reads the job",
    "-> decision written",
    "-> old pod deleted",
    "-> replacement created",
)


@dataclass(frozen=True)
class Call:
    """A request that the API server has answered; seconds since the epoch."""

    began: float
    ended: float


@dataclass(frozen=True)
class Reaction:
    """The seconds of each stage, in the order of STAGES."""

    stages: tuple[float, ...]

    @property
    def total_s(self) -> float:
        """From the moment at which the API server had recorded the failure until the replacement existed."""
        return sum(self.stages)


def reactions(log: Iterable[dict[str, Any]], failed_by: str = "loop") -> list[Reaction]:
    """Return one for each pod whose status this user changed; raises RuntimeError if one was not replaced."""
    failures: list[tuple[str, Call]] = []
    calls: dict[tuple[str, str, str], list[Call]] = defaultdict(list)
    for line in log:
        asked = line.get("objectRef") or {}
        call = Call(_seconds(line["requestReceivedTimestamp"]), _seconds(line["stageTimestamp"]))
        name, status = asked.get("name", ""), asked.get("subresource") == "status"
        if line["user"]["username"] == OPERATOR_USER:
            calls[line["verb"], asked.get("resource", ""), name].append(call)
        elif line["user"]["username"] == failed_by and asked.get("resource") == "pods" and status:
            failures.append((name, call))
    return [_reaction(calls, pod, failure.ended) for pod, failure in failures]


def _reaction(calls: dict[tuple[str, str, str], list[Call]], pod: str, failed_at: float) -> Reaction:
    job = pod.rpartition("-")[0]
    deleted = next((c for c in calls["delete", "pods", pod] if c.ended > failed_at), None)
    created = next((c for c in calls["create", "pods", pod] if c.began > failed_at), None)
    if deleted is None or created is None:
        raise RuntimeError(f"pod {pod} failed and was not replaced")
    written = [c.ended for c in calls["patch", "distributedtrainingjobs", job] if c.ended <= deleted.began]
    decided_at = max(written, default=failed_at)
    read = [c.began for c in calls["get", "distributedtrainingjobs", job] if c.began < decided_at]
    moments = (failed_at, max(read, default=failed_at), decided_at, deleted.ended, created.ended)
    ordered = [max(moments[: i + 1]) for i in range(len(moments))]
    return Reaction(tuple(later - earlier for earlier, later in pairwise(ordered)))


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()
