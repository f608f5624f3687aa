"""All that a policy may know about one job at one moment, `now` included.

Made by gather, read by everything in this package, changed by nobody. What must survive a restart of the
operator is read from `memory`, the job's own status; nothing here is remembered in the process.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property
from typing import Any

from dtj_operator.kube.nodes import NodeView
from dtj_operator.kube.views import ContainerView, PodView
from dtj_operator.plan import times
from dtj_operator.spec import Job

Json = dict[str, Any]

PENDING, STARTING, RUNNING, RECOVERING = "Pending", "Starting", "Running", "Recovering"
SUSPENDED, SUCCEEDED, FAILED = "Suspended", "Succeeded", "Failed"
FINAL = (SUCCEEDED, FAILED)


class Child(Enum):
    """What is known of the Service or the NetworkPolicy."""

    UNKNOWN = "nobody looked yet"
    ABSENT = "does not exist"
    PRESENT = "exists and is ours"
    EDITED = "exists and is ours, and somebody has made something else of it"
    FOREIGN = "exists and belongs to somebody else"


@dataclass(frozen=True, kw_only=True)
class Restarts:
    counted: int = 0
    disruptions: int = 0
    without_progress: int = 0
    highest_step: int | None = None  # ever reported; growth beyond it is progress


@dataclass(frozen=True)
class Memory:
    """The job's status as stored: the operator's only memory."""

    raw: Json = field(default_factory=dict)

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

    @cached_property
    def restarts(self) -> Restarts:
        raw = self.raw.get("restarts") or {}
        return Restarts(
            counted=raw.get("counted", 0),
            disruptions=raw.get("disruptions", 0),
            without_progress=raw.get("withoutProgress", 0),
            highest_step=raw.get("highestStep"),
        )

    def condition(self, kind: str) -> Json | None:
        return next((c for c in self.raw.get("conditions") or () if c.get("type") == kind), None)


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """Why the API server did not take a child, in its own words; the reason is one of PodsReady's."""

    reason: str  # NameConflict | QuotaExceeded | PodRejected
    message: str


@dataclass(frozen=True, kw_only=True)
class Progress:
    """The last answer of replica 0's agent."""

    attempt: int
    observed_at: float
    step: int | None = None
    total_steps: int | None = None
    epoch: int | None = None
    loss: float | None = None
    samples_per_second: float | None = None
    eta_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    job: Job
    memory: Memory
    pods: tuple[PodView, ...] = ()
    service: Child = Child.UNKNOWN
    network_policy: Child = Child.UNKNOWN
    mend_at: float = 0.0  # edited ones are made anew from then on
    nodes: Mapping[str, NodeView] | None = None  # by name; None: they may not be read, or are in doubt
    refusals: tuple[Refusal, ...] = ()
    progress: Progress | None = None
    operator_namespace: str = "dtj-system"
    now: float

    def after(self, pods: tuple[PodView, ...], refusals: tuple[Refusal, ...]) -> "Snapshot":
        """The same moment, once the actions are done: what the status tells."""
        return replace(self, pods=pods, refusals=self.refusals + refusals)

    @cached_property
    def ours(self) -> tuple[PodView, ...]:
        """Pods that this very job owns; a job of the same name that is gone had another uid."""
        return tuple(pod for pod in self.pods if pod.owner_uid == self.job.uid)

    @cached_property
    def current(self) -> dict[int, PodView]:
        """Pods of the current attempt by index."""
        indices = range(self.job.replicas)
        return {p.index: p for p in self.ours if p.attempt == self.memory.attempt and p.index in indices}

    @cached_property
    def obsolete(self) -> tuple[PodView, ...]:
        """Pods under our label that stand in the way: of an older attempt, or of a job that is gone."""
        kept = {pod.uid for pod in self.current.values()}
        return tuple(pod for pod in self.pods if pod.owner_uid and pod.uid not in kept)

    @cached_property
    def missing(self) -> tuple[int, ...]:
        return tuple(index for index in range(self.job.replicas) if index not in self.current)

    def trainer(self, pod: PodView) -> ContainerView | None:
        """The container of this pod that runs the ranks, once the kubelet has reported it."""
        return next((c for c in pod.containers if not c.init and c.name == self.job.trainer), None)

    def succeeded(self, pod: PodView) -> bool:
        """Its ranks are done; a helper container that never ends does not hold the job up."""
        trainer = self.trainer(pod)
        return pod.phase == "Succeeded" or (trainer is not None and trainer.exit_code == 0)

    def failed(self, pod: PodView) -> bool:
        trainer = self.trainer(pod)
        return not self.succeeded(pod) and (
            pod.phase == "Failed" or (trainer is not None and trainer.exit_code is not None)
        )

    def started(self, pod: PodView) -> bool:
        """Its ranks run, or have run to a good end."""
        return pod.phase == "Running" or self.succeeded(pod)


@dataclass(frozen=True, kw_only=True)
class Gone:
    """A job that no longer exists, and those of its children that a cache or the API still shows."""

    namespace: str
    name: str
    pods: tuple[PodView, ...] = ()
    service_uid: str | None = None
    network_policy_uid: str | None = None
