"""Everything that a policy knows about one job at one moment, including `now`.

gather builds it, this package reads it, and nothing changes it. What must survive a restart of the operator
is read from `memory`, the job's own status; the process itself keeps no state for these decisions.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from dtj_operator.model.agent_status import Progress
from dtj_operator.model.children import Child, Refusal
from dtj_operator.model.json import Json
from dtj_operator.model.memory import JOB, RECOVERING, REPLICA, RUNNING, Memory
from dtj_operator.model.spec import Job, Recovery
from dtj_operator.model.views import ContainerView, PodGroupView, PodSettings, PodView, WorkloadView
from dtj_operator.plan.node_loss import PodsOnNodes

# A longer silence proves nothing about the node: by then Kubernetes has marked it NotReady.
SILENCE_COUNTS_S = 180.0


@dataclass(frozen=True, kw_only=True)
class Silence:
    """Replica 0's agent answered in this attempt, but no longer does, or its answer does not change any more.

    since          the last answer
    unheard_since  since when most of the other agents that were asked have not heard it either, and none has
    is_heard       another agent hears it: only the operator does not reach it
    """

    since: float
    unheard_since: float | None = None
    is_heard: bool = False


@dataclass(frozen=True, kw_only=True)
class QueueFacts:
    """What the cluster says about the queue of a job.

    problem   why the operator cannot use Kueue; empty: it can
    current   the Workload for the present spec
    flavors   ResourceFlavors that the admitted Workload names
    priority  of the class that the job names
    absent    an object that the job or its Workload names and that cannot be read, in a sentence
    """

    problem: str = ""
    workloads: tuple[WorkloadView, ...] = ()
    current: WorkloadView | None = None
    flavors: Mapping[str, PodSettings] = field(default_factory=dict)
    priority: int | None = None
    absent: str = ""


@dataclass(frozen=True, kw_only=True)
class Snapshot(PodsOnNodes):
    job: Job
    memory: Memory
    children: Mapping[str, Child] = field(default_factory=dict)  # Service and NetworkPolicy, by kind
    revert_at: float = 0.0  # when edits of children may be reverted
    refusal: Refusal | None = None
    answer: Progress | None = None  # the last one of the current attempt's agents
    coordinator_silence: Silence | None = None
    last_nodes: Mapping[int, str] = field(default_factory=dict)  # nodes of vanished pods, by index
    gang_api: str = ""  # version of the API of PodGroups; empty: the cluster places pods one by one
    gangs_off: str = ""  # why not, although the cluster serves PodGroups
    pod_groups: tuple[PodGroupView, ...] = ()
    queue: QueueFacts = QueueFacts()
    readers: tuple[Json, ...] = ()  # NetworkPolicyPeers that may reach the agents of every job

    @property
    def recovery(self) -> Recovery:
        return self.job.recovery

    def after(self, pods: tuple[PodView, ...], refusal: Refusal | None) -> "Snapshot":
        """The same moment after the actions; the status describes this.

        If nothing changed it is this same object, with all that was derived from it.
        """
        if pods == self.pods and refusal is None:
            return self
        return replace(self, pods=pods, refusal=refusal)

    @cached_property
    def owned(self) -> tuple[PodView, ...]:
        """Pods with this job as owner; a deleted job of the same name had another uid."""
        return tuple(pod for pod in self.pods if pod.owner_uid == self.job.uid)

    @cached_property
    def has_answered(self) -> bool:
        """Whether an agent answered while the job ran, as the status tells also of earlier processes."""
        return self.memory.phase == RUNNING and self.memory.private.rejoins

    @cached_property
    def rejoins(self) -> bool:
        """Whether agents of this attempt, of which the status may tell, can recover in place."""
        return self.memory.private.rejoins or (self.answer is not None and self.answer.rejoin)

    @cached_property
    def silent_pods(self) -> dict[str, PodView]:
        silent = {i for i, since in self.silent_since.items() if self.now - since < SILENCE_COUNTS_S}
        first = self.current.get(0)
        silence = self.coordinator_silence
        just_stopped = silence is not None and self.now - silence.since < SILENCE_COUNTS_S
        node_of_first = first.node if just_stopped and first is not None else None
        lost = self.lost_nodes
        current = {pod.uid for pod in self.current.values()}
        return {
            pod.uid: pod
            for pod in self.owned
            if (pod.attempt == self.memory.attempt and (pod.index in silent or pod.node == node_of_first))
            or (pod.node in lost and pod.uid not in current)  # no agent answers for an old attempt
            if not pod.ended
        }

    @cached_property
    def silent_since(self) -> dict[int, float]:
        """Replicas that took part and that the others wait for, as replica 0's current pod last reported.

        A report of a pod that is being replaced is ignored: that pod itself may have been the isolated one.
        """
        answer, first = self.answer, self.current.get(0)
        if answer is None or first is None or first.address != answer.address:
            return {}
        return {each.replica: answer.observed_at - each.seconds for each in answer.silent_replicas}

    @cached_property
    def lost_nodes(self) -> frozenset[str]:
        """Nodes whose loss the job is recovering from: the blamed node, and those recorded since."""
        failure, began = self.memory.failure, self.memory.changed_at
        if self.memory.phase != RECOVERING or failure.get("reason") != "NodeLost":
            return frozenset()
        noted = {known.node for known in self.memory.faulty_nodes if began is not None and known.at >= began}
        return frozenset(noted | {str(failure.get("node"))})

    @cached_property
    def scope(self) -> str:
        """What a recovery restarts; Auto means Replica once this attempt's agents report that they can."""
        configured = self.job.recovery.scope
        of_agents = REPLICA if self.memory.private.rejoins else JOB
        return of_agents if configured == "Auto" else configured

    @cached_property
    def size(self) -> int:
        """Number of replicas of the current attempt.

        With scope Replica the attempt follows spec.replicas; else it keeps the size that it started with.
        """
        if self.job.elastic is None or self.scope == REPLICA or self.memory.recorded_size is None:
            return self.job.replicas
        return self.memory.recorded_size

    @cached_property
    def current(self) -> dict[int, PodView]:
        """Pods of the current attempt by index, without those that are being replaced."""
        return {p.index: p for p in self.owned if p.attempt == self.memory.attempt and self._is_current(p)}

    def _is_current(self, pod: PodView) -> bool:
        replaced = self.memory.private.replacing.get(pod.index) == pod.uid
        # Removed by scaling down, and needed again before it was gone.
        leaving = (
            pod.deleting and self.memory.recorded_size is not None and pod.index >= self.memory.recorded_size
        )
        valid = 0 <= pod.index < self.size and not pod.mislabelled
        return valid and not replaced and not leaving

    @cached_property
    def obsolete(self) -> tuple[PodView, ...]:
        """Pods with our label that block a name: being replaced, of an older attempt or of a deleted job."""
        kept = {pod.uid for pod in self.current.values()}
        return tuple(pod for pod in self.pods if pod.owner_uid and pod.uid not in kept)

    def is_of_another_attempt(self, pod: PodView) -> bool:
        """Whether it is of an older attempt, or of a deleted job of the same name."""
        return pod.owner_uid != self.job.uid or pod.attempt != self.memory.attempt

    @cached_property
    def missing(self) -> tuple[int, ...]:
        """Replicas that have no pod and need one."""
        return tuple(i for i in range(self.size) if i not in self.current and i not in self.memory.done)

    @cached_property
    def vanished(self) -> tuple[int, ...]:
        """Missing replicas whose pod was deleted: in phase Running all pods had existed."""
        if self.memory.phase != RUNNING:
            return ()
        known = self.size if self.memory.recorded_size is None else min(self.size, self.memory.recorded_size)
        return tuple(i for i in self.missing if i < known and i not in self.memory.private.replacing)

    @cached_property
    def trainers(self) -> dict[str, ContainerView]:
        """The container that runs the ranks, once the kubelet has reported it, by uid of the pod."""
        name = self.job.trainer
        return {pod.uid: c for pod in self.pods for c in pod.containers if c.name == name and not c.init}

    @cached_property
    def _outcomes(self) -> dict[str, bool]:
        """Whether the ranks of a pod succeeded, by uid of the pod, once they have ended."""
        codes = {uid: c.exit_code for uid, c in self.trainers.items() if c.exit_code is not None}
        ended = (pod for pod in self.pods if pod.uid in codes or pod.phase in ("Succeeded", "Failed"))
        return {pod.uid: pod.phase == "Succeeded" or codes.get(pod.uid) == 0 for pod in ended}

    def succeeded(self, pod: PodView) -> bool:
        """Whether its ranks have succeeded; a sidecar that never exits does not delay the job."""
        return self._outcomes.get(pod.uid) is True

    def failed(self, pod: PodView) -> bool:
        return self._outcomes.get(pod.uid) is False

    def started(self, pod: PodView) -> bool:
        """Whether its ranks run or have succeeded."""
        return pod.phase == "Running" or self.succeeded(pod)


# Of a deleted job that this process has not seen: nothing is forced that its user may have turned off.
UNKNOWN = Recovery(node_lost_s=None, termination_s=None)


@dataclass(frozen=True, kw_only=True)
class Gone(PodsOnNodes):
    """A job that no longer exists, and its children that a cache or the API still shows."""

    recovery: Recovery = UNKNOWN  # of its spec
    children: Mapping[str, str] = field(default_factory=dict)  # uids of Service and NetworkPolicy, by kind
