"""The job's status as stored, with typed fields: the operator's only memory."""

from dataclasses import dataclass, field
from functools import cached_property

from dtj_operator.model import private, ranges, times
from dtj_operator.model.json import Json
from dtj_operator.model.private import Counters, Private

PENDING, STARTING, RUNNING, RECOVERING = "Pending", "Starting", "Running", "Recovering"
SUSPENDED, SUCCEEDED, FAILED = "Suspended", "Succeeded", "Failed"
TERMINATING = "Terminating"
FINAL = (SUCCEEDED, FAILED)
REPLICA, JOB = "Replica", "Job"  # how much of the job a recovery touches


class Restarts(Counters, frozen=True, kw_only=True):
    counted: int = 0  # including in-place restarts
    disruptions: int = 0
    in_place: int = 0  # by the agents, without a new pod
    without_progress: int = 0


@dataclass(frozen=True, kw_only=True)
class FaultyNode:
    """A node on which this job had faults."""

    node: str
    faults: int
    at: float  # of the last fault
    stuck: bool = False  # a pod on it did not terminate
    preferred: bool = False  # new pods only prefer other nodes


@dataclass(frozen=True)
class Memory:
    """The job's status as stored: the operator's only memory.

    restored  the stored status instead, if a backup brought it from an earlier job that had not finished:
              its start, attempt and steps are not those of this job
    """

    raw: Json = field(default_factory=dict)
    restored: Json = field(default_factory=dict)

    @classmethod
    def of(cls, status: Json, uid: str, *, is_remote: bool) -> "Memory":
        """The memory of the job with this uid; of a remote one, MultiKueue writes the status of its copy."""
        is_own = is_remote or uid in str(status.get("selector") or uid)
        return cls(status) if is_own or status.get("phase") in FINAL else cls(restored=status)

    @property
    def phase(self) -> str:
        return str(self.raw.get("phase") or "")

    @property
    def finished(self) -> bool:
        return self.phase in FINAL

    @property
    def attempt(self) -> int:
        return int(self.raw.get("attempt") or 0)

    @property
    def started_at(self) -> float | None:
        return times.parse(self.raw.get("startTime"))

    @property
    def completed_at(self) -> float | None:
        return times.parse(self.raw.get("completionTime"))

    @property
    def changed_at(self) -> float | None:
        """When phase or attempt last changed."""
        return times.parse(self.raw.get("lastTransitionTime"))

    @property
    def failure(self) -> Json:
        return dict(self.raw.get("failure") or {})

    @property
    def progress(self) -> Json:
        return dict(self.raw.get("progress") or {})

    @property
    def goodput(self) -> Json:
        return dict(self.raw.get("goodput") or {})

    @cached_property
    def private(self) -> Private:
        return private.read(self.raw)

    @cached_property
    def done(self) -> frozenset[int]:
        """Replicas of the current attempt that are known to have succeeded."""
        return frozenset(ranges.parse(self.private.done))

    @cached_property
    def faulty_nodes(self) -> tuple[FaultyNode, ...]:
        """Nodes on which this job had faults, the latest first."""
        raw = self.raw.get("avoidedNodes") or ()
        return tuple(
            FaultyNode(
                node=str(e.get("node")),
                faults=int(e.get("faults", 1)),
                at=times.parse(e.get("at")) or 0.0,
                stuck=e.get("stuck") is True,
                preferred=e.get("preferred") is True,
            )
            for e in raw
        )

    @property
    def recorded_size(self) -> int | None:
        """The recorded size of the current attempt; elastic jobs only."""
        return self.private.wanted_replicas

    @cached_property
    def restarts(self) -> Restarts:
        raw = self.raw.get("restarts") or {}
        return Restarts(
            counted=raw.get("counted", 0),
            disruptions=raw.get("disruptions", 0),
            in_place=raw.get("inPlace", 0),
            without_progress=raw.get("withoutProgress", 0),
            **self.private.counters(),
        )

    def condition(self, kind: str) -> Json:
        return condition(self.raw, kind)


def condition(status: Json, kind: str) -> Json:
    """The condition of this type; empty if the status has none."""
    return next((c for c in status.get("conditions") or () if c.get("type") == kind), {})
