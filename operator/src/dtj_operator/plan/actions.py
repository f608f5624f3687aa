"""What the planner can decide (verdicts) and request (actions), as plain data.

A verdict comes without actions: it is written to the status first, and the next step acts on what is written.
So a crash between the two neither forgets a restart nor counts it twice.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import dropwhile

from dtj_operator.model.children import Refusal
from dtj_operator.model.json import Json
from dtj_operator.model.private import Shortage
from dtj_operator.model.views import PodGroupView, PodView, WorkloadView

_WORD = re.compile(r"\w")
_GROUP = re.compile(r"^ +\| ")  # before each line of an exception of an ExceptionGroup
_CUT = 2000  # characters of a log, of which the kubelet keeps the last 2,048 bytes
_OF_TORCHRUN = re.compile(r"^[EW]\d{4} .*torch/distributed/elastic/", re.MULTILINE)  # warning or error


@dataclass(frozen=True, kw_only=True)
class Fault:
    """The first primary cause of an incident: who, where, why."""

    reason: str  # one of those in docs/status.md
    replica: int
    rank: int | None = None
    node: str = ""
    exit_code: int | None = None  # of the container to blame
    signal: str = ""
    message: str = ""
    at: float
    generation: int | None = None
    disruption: bool = False  # the pod was evicted, deleted or lost; it did not fail by itself
    init_container: str = ""  # that failed, so that no rank of the pod has started
    lacks_program: bool = False  # the container's image does not have the program that it should run
    conditions: tuple[tuple[str, str], ...] = ()  # (type, status) of the pod, for the user's rules
    exit_codes: tuple[tuple[str, int], ...] = ()  # (container, code) of all that ended, likewise
    reported_by: int | None = None  # replica whose pod reports it, as long as its own pod does not

    @property
    def secondary(self) -> bool:
        """Whether it is a consequence of another rank's failure: blamed only if there is no primary cause."""
        return self.reason == "PeerLost"

    @property
    def sentence(self) -> str:
        replica, node = f"replica {self.replica}", f" on node {self.node}" if self.node else ""
        why = headline(self.message)[:300]
        if self.reason == "PeerLost" and self.exit_code is None:  # its pod still runs
            return f"{replica}{node} is unreachable" + (f": {why}" if why else "")
        who = replica if self.rank is None else f"rank {self.rank} ({replica})"
        if self.init_container:
            who = f"init container {self.init_container} of {replica}"
        how = "was lost" if self.disruption else "failed"
        if self.exit_code is not None:
            how = f"exited with code {self.exit_code}"
        says_code_again = self.init_container and self.reason == "ExitCode" and why
        return ": ".join(filter(None, (f"{who}{node} {how}", "" if says_code_again else self.reason, why)))


def tail(text: str, limit: int) -> str:
    """The end of a text, from the beginning of a line on if it has several: at most so many characters."""
    text = text.strip()
    if len(text) <= limit:
        return text
    kept = text[-limit:]
    return kept.partition("\n")[2] or kept


def before_launcher(output: str) -> str:
    """What a program wrote before torchrun summed up its failure; all, if it wrote nothing."""
    said = _OF_TORCHRUN.search(output)
    own = output[: said.start()].rstrip() if said else output
    if said and len(output) >= _CUT:  # the first line may be the end of one of torchrun's
        own = own.partition("\n")[2]
    return own or output


def headline(message: str) -> str:
    """The line that names the error: of a traceback the first one behind its frames, else the last one.

    The last line of an error of dtj says how to fix what the line before names, so it is both. So is an error
    that has its reason in the next line, as of `load_state_dict`.
    """
    lines = [_GROUP.sub("", line) for line in message.strip().splitlines()] or [""]
    frames = [number for number, line in enumerate(lines) if line.startswith("  File ")]
    behind = dropwhile(lambda line: not line or line.startswith(" "), lines[frames[-1] :] if frames else ())
    found, *more = [*behind] or lines[-1:]
    if found.rstrip().endswith(":"):
        found = " ".join([found.rstrip(), *(line.strip() for line in more if _WORD.search(line))][:2])
    return "; ".join(line.strip() for line in lines[-2:]) if found.startswith("  fix: ") else found


@dataclass(frozen=True)
class Succeed:
    reason: str  # AllRanksSucceeded | SuccessPolicy


@dataclass(frozen=True)
class Fail:
    reason: str  # RecoveryRule | RestartBudgetSpent | NoProgress | DeadlineExceeded | BadSpec
    message: str
    fault: Fault | None = None


@dataclass(frozen=True)
class Restart:
    """A new attempt: all pods are deleted, and recreated once all are gone.

    replaces       delete and recreate only these pods (index, uid), beside the others; no new attempt
    same_incident  part of the incident that the job is recovering from, which is already reported and counted
    """

    fault: Fault
    counts: bool
    replaces: tuple[tuple[int, str], ...] | None = None
    same_incident: bool = False


@dataclass(frozen=True)
class Resize:
    """Change the size of this attempt, or start a new attempt with that size; never counted."""

    size: int
    why: str
    new_attempt: bool
    shortage: Shortage | None = None  # set if smaller than spec.replicas, until there is capacity


@dataclass(frozen=True)
class UseReplicaScope:
    """The agents of this attempt can recover in place: from now on replace only the failed pods."""


@dataclass(frozen=True)
class AllowNodes:
    """From now on only prefer other nodes, and recreate these unschedulable pods (index, uid)."""

    replaces: tuple[tuple[int, str], ...]


@dataclass(frozen=True)
class Ungroup:
    """Recreate these pods (index, uid), which no node has yet, without a PodGroup."""

    replaces: tuple[tuple[int, str], ...]


@dataclass(frozen=True)
class Suspend:
    """Delete all pods, which may commit a checkpoint before they end; never counted."""

    reason: str = "Suspended"  # | Queued | Inadmissible | Evicted | Deactivated | QueueUnavailable
    message: str = "spec.suspend is true"


@dataclass(frozen=True)
class Resume:
    message: str = "spec.suspend is false"


@dataclass(frozen=True)
class AwaitCause:
    """Only consequences are known so far: wait until then for the cause."""

    until: float


Recreate = AllowNodes | Ungroup  # of pods that have not run
Verdict = Succeed | Fail | Restart | Resize | UseReplicaScope | Recreate | Suspend | Resume | AwaitCause


def starts_new_attempt(verdict: Verdict | None) -> bool:
    match verdict:
        case Restart(replaces=None) | Resize(new_attempt=True):
            return True
    return False


def ends_attempt(verdict: Verdict | None) -> bool:
    """Whether all pods of the attempt are deleted, for another attempt or for none."""
    return isinstance(verdict, Suspend) or starts_new_attempt(verdict)


@dataclass(frozen=True)
class Create:
    """Create any child but a pod, or revert an edit of it."""

    body: Json


@dataclass(frozen=True)
class Delete:
    """Delete a PodGroup or a Workload; a PodGroup exists until none of its pods runs."""

    view: PodGroupView | WorkloadView


@dataclass(frozen=True)
class AdoptWorkload:
    """Make the job the controller of a Workload that another controller has made for it."""

    workload: WorkloadView
    metadata: Json


@dataclass(frozen=True)
class UpdateWorkload:
    """Set conditions of a Workload.

    releases  also give its quota back
    """

    workload: WorkloadView
    conditions: tuple[Json, ...]
    releases: bool = False


@dataclass(frozen=True)
class CreatePod:
    """Create the pod of a replica.

    make   returns its body, which is made when it is needed: those of 10,000 pods take 60 MiB
    """

    make: Callable[[], Json]

    @property
    def body(self) -> Json:
        return self.make()


@dataclass(frozen=True)
class DeletePod:
    pod: PodView
    grace_s: int | None = None  # None: the pod's own
    unchanged: bool = False  # only in the newest state that the cache has: its owner reference may be gone


@dataclass(frozen=True)
class DeleteChild:
    kind: str  # Service | NetworkPolicy
    uid: str | None = None  # None: the one of that name that this job owns


@dataclass(frozen=True)
class DeleteJob:
    pass


Action = Create | Delete | AdoptWorkload | UpdateWorkload | CreatePod | DeletePod | DeleteChild | DeleteJob


@dataclass(frozen=True, kw_only=True)
class Decision:
    """The result of one reconcile: a verdict or actions, and when to requeue the job if nothing happens."""

    verdict: Verdict | None = None
    actions: tuple[Action, ...] = ()
    refusal: Refusal | None = None
    requeue_at: float | None = None

    @property
    def deleted_pods(self) -> set[str]:
        """Uids of the pods that the actions delete."""
        return {action.pod.uid for action in self.actions if isinstance(action, DeletePod)}


@dataclass(frozen=True)
class Event:
    """A Kubernetes Event about the job."""

    type: str  # Normal | Warning
    reason: str
    note: str
    once_per: str  # Events with the same reason and the same value are recorded once
