"""What the planner may decide (verdicts) and what it may ask for (actions): data, nothing else.

A verdict changes the job's memory and comes alone: it is written to the status first, and the next look acts
on what was written. So a crash between the two can neither forget a restart nor count it twice.
"""

from dataclasses import dataclass, field
from typing import Any

from dtj_operator.kube.views import PodView
from dtj_operator.plan.snapshot import Refusal, Shortage

Json = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Fault:
    """The first primary cause of an incident: who, where, why."""

    reason: str  # Exception | ExitCode | Signal | OOMKilled | Hang | NodeLost | Evicted | PeerLost
    replica: int
    rank: int | None = None
    node: str = ""
    exit_code: int | None = None
    signal: str = ""
    message: str = ""
    at: float
    generation: int | None = None
    step: int | None = None
    disruption: bool = False  # somebody took the pod away; it did not fail by itself
    conditions: tuple[tuple[str, str], ...] = ()  # (type, status) of the pod, for the user's rules

    @property
    def secondary(self) -> bool:
        """A consequence of somebody else's end: blamed only where nobody else can be."""
        return self.reason == "PeerLost"

    @property
    def sentence(self) -> str:
        replica, node = f"replica {self.replica}", f" on node {self.node}" if self.node else ""
        last = self.message.strip().rpartition("\n")[2][:300]
        if self.reason == "PeerLost" and self.exit_code is None:  # its pod still runs
            return f"{replica}{node} is unreachable" + (f": {last}" if last else "")
        who = replica if self.rank is None else f"rank {self.rank} ({replica})"
        how = "was lost" if self.disruption else "failed"
        if self.exit_code is not None:
            how = f"exited with code {self.exit_code}"
        return f"{who}{node} {how}: {self.reason}" + (f": {last}" if last else "")


@dataclass(frozen=True)
class Succeed:
    reason: str  # AllRanksSucceeded | Rank0Succeeded


@dataclass(frozen=True)
class Fail:
    reason: str  # RecoveryRule | RestartBudgetSpent | NoProgress | DeadlineExceeded | BadSpec
    message: str
    fault: Fault | None = None


@dataclass(frozen=True)
class Restart:
    """A new attempt: every pod of this one goes, the next comes when all are gone.

    replaces   only these (index, uid) go, and are made anew beside the others; no new attempt
    goes_on    it is part of the incident that the job is recovering from, which has been told of and counted
    """

    fault: Fault
    counts: bool
    replaces: tuple[tuple[int, str], ...] | None = None
    goes_on: bool = False

    @property
    def of_job(self) -> bool:
        return self.replaces is None


@dataclass(frozen=True)
class Resize:
    """The attempt has another size from now on, or a new attempt has it; counted nowhere."""

    size: int
    why: str
    new_attempt: bool
    shortage: Shortage | None = None  # set: smaller than wished, until there is room


@dataclass(frozen=True)
class Trust:
    """The agents of this attempt can heal: from now on only what is broken is replaced."""


@dataclass(frozen=True)
class Lift:
    """No node is avoided any more; these pods (index, uid), which found no room, are made anew."""

    replaces: tuple[tuple[int, str], ...]


@dataclass(frozen=True)
class Suspend:
    pass


@dataclass(frozen=True)
class Resume:
    pass


@dataclass(frozen=True)
class Settle:
    """Only consequences are seen so far: give the cause until then to show itself."""

    until: float


Verdict = Succeed | Fail | Restart | Resize | Trust | Lift | Suspend | Resume | Settle


@dataclass(frozen=True)
class CreateService:
    body: Json


@dataclass(frozen=True)
class CreateNetworkPolicy:
    body: Json


@dataclass(frozen=True)
class CreatePod:
    body: Json


@dataclass(frozen=True)
class DeletePod:
    pod: PodView
    grace_s: int | None = None  # None: the pod's own
    unchanged: bool = False  # only if nobody touched it since: its owner reference may have been taken off


@dataclass(frozen=True)
class DeleteService:
    uid: str | None = None  # None: whichever of that name is ours


@dataclass(frozen=True)
class DeleteNetworkPolicy:
    uid: str | None = None


@dataclass(frozen=True)
class DeleteJob:
    pass


Action = (
    CreateService
    | CreateNetworkPolicy
    | CreatePod
    | DeletePod
    | DeleteService
    | DeleteNetworkPolicy
    | DeleteJob
)


@dataclass(frozen=True, kw_only=True)
class Decision:
    """One look at a job: a verdict or actions, and when to look again if nothing happens."""

    verdict: Verdict | None = None
    actions: tuple[Action, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    look_again_at: float | None = None


@dataclass(frozen=True)
class Event:
    """A Kubernetes Event about the job."""

    type: str  # Normal | Warning
    reason: str
    note: str
    once_per: str = field(default="")  # events of the same reason and of this are one
