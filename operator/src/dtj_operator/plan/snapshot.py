"""All that a policy may know about one job at one moment, `now` included.

Made by gather, read by everything in this package, changed by nobody. What must survive a restart of the
operator is read from `memory`, the job's own status; nothing here is remembered in the process.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property
from typing import Any

from dtj_operator.kube.views import ContainerView, PodView
from dtj_operator.plan import ranges, times
from dtj_operator.plan.placement import Placed
from dtj_operator.spec import Job

Json = dict[str, Any]

PENDING, STARTING, RUNNING, RECOVERING = "Pending", "Starting", "Running", "Recovering"
SUSPENDED, SUCCEEDED, FAILED = "Suspended", "Succeeded", "Failed"
FINAL = (SUCCEEDED, FAILED)
REPLICA, JOB = "Replica", "Job"  # how much of the job a recovery touches

DOUBT_S = 180.0  # an agent that is silent for longer says nothing of its node: Kubernetes has spoken by then
CUT_OFF_S = 120.0  # a pod that runs, and whose agent replica 0 has not heard of for so long, is replaced
ROOM_S = 120.0  # a pod that fits no node for this long is not waited for where the job may be smaller


class Child(Enum):
    """What is known of the Service or the NetworkPolicy."""

    ABSENT = "does not exist"
    PRESENT = "exists and is ours"
    EDITED = "exists and is ours, and somebody has made something else of it"
    FOREIGN = "exists and belongs to somebody else"


@dataclass(frozen=True, kw_only=True)
class Restarts:
    counted: int = 0  # those healed in place included
    disruptions: int = 0
    in_place: int = 0  # by the agents, without a new pod
    in_place_now: int = 0  # of these, what the agents of the present attempt have told
    without_progress: int = 0
    highest_step: int | None = None  # ever reported; growth beyond it is progress


@dataclass(frozen=True, kw_only=True)
class Shortage:
    """An attempt of scope Job is smaller than wished, for not all of its pods found room."""

    replicas: int  # the size that was wished for
    tries: int  # how often it did not fit
    retry_at: float


@dataclass(frozen=True, kw_only=True)
class Suspect:
    """A node on which this job had faults."""

    node: str
    faults: int
    at: float  # of the last one


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

    @property
    def goodput(self) -> Json:
        return dict(self.raw.get("goodput") or {})

    @property
    def scope(self) -> str:
        return str(self.raw.get("recoveryScope") or JOB)

    @cached_property
    def replacing(self) -> dict[int, str]:
        """Uids of the pods that a verdict replaces, by index; empty where the pod was gone already."""
        return {int(entry["replica"]): str(entry.get("uid", "")) for entry in self.raw.get("replacing") or ()}

    @cached_property
    def done(self) -> frozenset[int]:
        """Replicas of the present attempt that are known to have ended well."""
        return frozenset(ranges.parse(str(self.raw.get("done") or "")))

    @cached_property
    def suspects(self) -> tuple[Suspect, ...]:
        """Nodes on which this job had faults, the latest first."""
        raw = self.raw.get("avoidedNodes") or ()
        return tuple(
            Suspect(
                node=str(e.get("node")), faults=int(e.get("faults", 1)), at=times.parse(e.get("at")) or 0.0
            )
            for e in raw
        )

    @property
    def wanted(self) -> int | None:
        """Replicas that the present attempt comprises; kept for elastic jobs only."""
        value = self.raw.get("wantedReplicas")
        return None if value is None else int(value)

    @property
    def shortage(self) -> Shortage | None:
        raw = self.raw.get("shortage")
        if not raw:
            return None
        retry_at = times.parse(raw.get("retryAt")) or 0.0
        return Shortage(replicas=int(raw["replicas"]), tries=int(raw["tries"]), retry_at=retry_at)

    @cached_property
    def restarts(self) -> Restarts:
        raw = self.raw.get("restarts") or {}
        return Restarts(
            counted=raw.get("counted", 0),
            disruptions=raw.get("disruptions", 0),
            in_place=raw.get("inPlace", 0),
            in_place_now=raw.get("inPlaceOfAttempt", 0),
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
class Ledger:
    """Where the seconds of an attempt went, by its agents' account."""

    productive: float = 0.0
    startup: float = 0.0
    lost: float = 0.0
    recovering: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Incident:
    """The last failure that the agents know of, in their words."""

    replica: int | None = None
    rank: int | None = None
    reason: str | None = None
    exit_code: int | None = None
    signal: str | None = None
    message: str | None = None
    generation: int | None = None
    step: int | None = None
    at: str | None = None  # RFC 3339


@dataclass(frozen=True, kw_only=True)
class Straggler:
    """A rank for which all others wait, though it makes steps."""

    rank: int
    replica: int | None = None
    ratio: float | None = None  # its work on a step over that of the others


@dataclass(frozen=True, kw_only=True)
class Hung:
    """A hang that the agents only report, while it lasts."""

    ranks: tuple[int, ...]
    message: str = ""


@dataclass(frozen=True, kw_only=True)
class Missing:
    """A replica that took part and that the others wait for, for so many seconds now."""

    replica: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Progress:
    """The last answer of replica 0's agent."""

    attempt: int
    observed_at: float
    address: str = ""  # of the pod that gave it
    step: int | None = None
    total_steps: int | None = None
    epoch: int | None = None
    loss: float | None = None
    samples_per_second: float | None = None
    eta_s: float | None = None
    rejoin: bool = False  # the agents of this attempt can heal around a replaced pod
    in_place: int = 0  # heals without a new pod in this attempt
    ledger: Ledger | None = None
    incident: Incident | None = None
    slowest: Straggler | None = None
    hang: Hung | None = None
    missing: tuple[Missing, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Snapshot(Placed):
    job: Job
    memory: Memory
    service: Child = Child.ABSENT
    network_policy: Child = Child.ABSENT
    mend_at: float = 0.0  # edited ones are made anew from then on
    refusals: tuple[Refusal, ...] = ()
    progress: Progress | None = None
    coordinator_silent: bool = False  # replica 0's agent has answered in this attempt, and does not now
    last_nodes: Mapping[int, str] = field(default_factory=dict)  # where vanished pods were, by index
    operator_namespace: str = "dtj-system"

    @property
    def node_lost_s(self) -> int:
        return self.job.recovery.node_lost_s

    def after(self, pods: tuple[PodView, ...], refusals: tuple[Refusal, ...]) -> "Snapshot":
        """The same moment, once the actions are done: what the status tells."""
        return replace(self, pods=pods, refusals=self.refusals + refusals)

    @cached_property
    def ours(self) -> tuple[PodView, ...]:
        """Pods that this very job owns; a job of the same name that is gone had another uid."""
        return tuple(pod for pod in self.pods if pod.owner_uid == self.job.uid)

    @cached_property
    def answer(self) -> Progress | None:
        """What the agents of the present attempt said last."""
        told = self.progress
        return told if told is not None and told.attempt == self.memory.attempt else None

    @cached_property
    def suspects(self) -> tuple[PodView, ...]:
        silent = {i for i, since in self.waited_for_since.items() if self.now - since < DOUBT_S}
        first = self.current.get(0)
        beside = first.node if self.coordinator_silent and first is not None else None
        decided = self.lost_nodes
        stays = {pod.uid for pod in self.current.values()}
        return tuple(
            pod
            for pod in self.ours
            if not pod.ended
            if (pod.attempt == self.memory.attempt and (pod.index in silent or pod.node == beside))
            or (pod.node in decided and pod.uid not in stays)  # nobody is asked about an attempt that is over
        )

    @cached_property
    def waited_for_since(self) -> dict[int, float]:
        """Replicas that took part and that the others wait for, by what replica 0's present pod told last.

        Not by the word of one that is being replaced: it may have been the one whom nobody heard.
        """
        told, first = self.answer, self.current.get(0)
        if told is None or first is None or first.address != told.address:
            return {}
        return {each.replica: told.observed_at - each.seconds for each in told.missing}

    @cached_property
    def cut_off(self) -> dict[int, float]:
        """Replicas whose pods live, but with which packets are not exchanged any more, and since when."""
        told = self.answer
        if told is None or self.scope != REPLICA:
            return {}
        unheard = {
            index: since
            for index, since in self.waited_for_since.items()
            if self._is_well(self.current.get(index), before=since)
        }
        # Whom nobody on several nodes reaches is cut off himself; the others hold the state of the run. They
        # need not fall silent in the same second: the first is not to blame before it is known of the last.
        nodes = {self.current[index].node for index in unheard}
        running = {i for i, pod in self.current.items() if pod.phase == "Running"}  # no other can be heard
        if running <= unheard.keys() | {0} and len(nodes) > 1:
            unheard = {0: max(unheard.values())}
        return {i: since for i, since in unheard.items() if told.observed_at - since >= CUT_OFF_S}

    def _is_well(self, pod: PodView | None, *, before: float) -> bool:
        """By the word of Kubernetes; one that was placed later has never taken part: it may still start."""
        if pod is None or self.failed(pod) or pod.deleting or pod.phase != "Running":
            return False
        node, placed = (self.nodes or {}).get(pod.node), pod.condition("PodScheduled")
        if node is None or not node.ready:
            return False
        return placed is not None and placed.since is not None and placed.since < before

    @cached_property
    def lost_nodes(self) -> frozenset[str]:
        """Nodes whose loss the job is recovering from: the blamed one, and those noted since that began."""
        failure, began = self.memory.failure, self.memory.changed_at
        if self.memory.phase != RECOVERING or failure.get("reason") != "NodeLost":
            return frozenset()
        noted = {known.node for known in self.memory.suspects if began is not None and known.at >= began}
        return frozenset(noted | {str(failure.get("node"))})

    @cached_property
    def scope(self) -> str:
        """How much a recovery touches: Auto means Replica once the agents of this attempt said they can."""
        wished = self.job.recovery.scope
        return self.memory.scope if wished == "Auto" else wished

    @cached_property
    def size(self) -> int:
        """Replicas that the present attempt is to have.

        With scope Replica the attempt follows the spec; else it is what it was made with.
        """
        if self.job.elastic is None or self.scope == REPLICA or self.memory.wanted is None:
            return self.job.replicas
        return self.memory.wanted

    @cached_property
    def current(self) -> dict[int, PodView]:
        """Pods of the current attempt by index, without those that were told to go."""
        return {p.index: p for p in self.ours if p.attempt == self.memory.attempt and self._stays(p)}

    def _stays(self, pod: PodView) -> bool:
        replaced = self.memory.replacing.get(pod.index) == pod.uid
        # Taken off by a smaller size, and wanted again before it was gone.
        leaving = pod.deleting and self.memory.wanted is not None and pod.index >= self.memory.wanted
        wanted = 0 <= pod.index < self.size and not pod.mislabelled
        return wanted and not replaced and not leaving

    @cached_property
    def obsolete(self) -> tuple[PodView, ...]:
        """Pods under our label in the way: being replaced, of an older attempt, or of a job that is gone."""
        kept = {pod.uid for pod in self.current.values()}
        return tuple(pod for pod in self.pods if pod.owner_uid and pod.uid not in kept)

    @cached_property
    def missing(self) -> tuple[int, ...]:
        """Replicas that have no pod and need one."""
        return tuple(i for i in range(self.size) if i not in self.current and i not in self.memory.done)

    @cached_property
    def vanished(self) -> tuple[int, ...]:
        """Missing replicas whose pod somebody removed: a job only runs once all of them were there."""
        if self.memory.phase != RUNNING:
            return ()
        known = self.size if self.memory.wanted is None else min(self.size, self.memory.wanted)
        return tuple(i for i in self.missing if i < known and i not in self.memory.replacing)

    @cached_property
    def left_out(self) -> frozenset[int]:
        """Replicas whose pods find no room and that an elastic job of scope Replica goes on without.

        Their pods stay where they are, Pending: the scheduler tells when there is room again. Not
        replica 0, where all others meet.
        """
        if self.job.elastic is None or self.scope != REPLICA:
            return frozenset()
        found = frozenset(i for i, pod in self.current.items() if i and self.long_unschedulable(pod))
        return found if self.size - len(found) >= self.job.lowest else frozenset()

    @cached_property
    def taking_part(self) -> dict[int, PodView]:
        return {i: pod for i, pod in self.current.items() if i not in self.left_out}

    def long_unschedulable(self, pod: PodView) -> bool:
        """Whether it has fitted no node for so long that it is not waited for."""
        since = unschedulable_since(pod)
        return since is not None and self.now - since >= ROOM_S

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


def unschedulable_since(pod: PodView) -> float | None:
    """Since when the scheduler finds no node for it, or None where that is not so."""
    told = pod.condition("PodScheduled")
    if pod.phase != "Pending" or told is None or told.status != "False" or told.reason != "Unschedulable":
        return None
    return told.since


@dataclass(frozen=True, kw_only=True)
class Gone(Placed):
    """A job that no longer exists, and those of its children that a cache or the API still shows."""

    namespace: str
    name: str
    service_uid: str | None = None
    network_policy_uid: str | None = None
