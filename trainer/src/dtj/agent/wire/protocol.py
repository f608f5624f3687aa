"""Inputs and decisions of membership.py as plain data: a job, an agent's hello, the coordinator's actions."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dtj.agent.wire.checked import checked
from dtj.agent.wire.outcome import Ending

# Version of all messages between the agents of a job, and between its ranks. Increase by one for each
# incompatible change. Never change the form of a refusal, nor `protocol`, `uid` and `attempt` of a hello.
PROTOCOL = 14
# Connecting takes this long only if a rank dies at that moment, or packets are lost.
CONNECT_S = 20.0


@dataclass(frozen=True)
class Limits:
    """The number of replicas that the job may have; `excluded` are sizes that --mesh does not fit."""

    least: int
    most: int
    excluded: frozenset[int] = frozenset()

    def largest(self, most: int) -> int | None:
        """The largest size up to `most`; None if there is none."""
        return max((n for n in range(self.least, most + 1) if n not in self.excluded), default=None)


@dataclass(frozen=True, kw_only=True)
class Job:
    """What an agent and the coordinator must agree on, and the size of the job.

    replicas  of the current generation, or of the next one
    limits    of an elastic job
    saves     it has a checkpoint folder, so that it can be stopped and resumed with another size
    deciding  replicas that have to be done for the job to succeed; None: all
    """

    uid: str = ""
    attempt: int = 0
    replicas: int = 1
    processes: int = 1
    limits: Limits | None = None
    saves: bool = False
    deciding: frozenset[int] | None = None

    @property
    def most(self) -> int:
        """The largest number of replicas that it may have."""
        return self.limits.most if self.limits else self.replicas

    @property
    def ranks(self) -> range:
        """All ranks."""
        return range(self.replicas * self.processes)

    def ranks_of(self, replica: int) -> range:
        """The ranks of one replica."""
        return range(replica * self.processes, (replica + 1) * self.processes)


@dataclass(frozen=True, kw_only=True)
class RestartBudget:
    """In-place restarts before the job fails; see maxRestarts and maxRestartsWithoutProgress of the API.

    restarts   allowed in this attempt, including the spent ones
    spent      before this agent started
    window_s   a later one counts for so long; None: forever
    backoff_s  delay of a restart without progress, doubled by each further one in a row
    """

    restarts: int = 0
    spent: int = 0
    without_progress: int = 3
    window_s: float | None = None
    backoff_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class CoordinatorState:
    """Sent to all agents, so that the next coordinator can continue after replica 0 was replaced.

    without_progress  counted restarts in a row since the last progress, those by the operator included
    error      that the program ended with last, as a number; see outcome.error_number
    identical  how often in a row, if it reported no step in between
    startup_s  the longest from the start of a generation to the first step of a rank
    """

    generation: int = 0
    in_place: int = 0
    without_progress: int = 0
    error: int = 0
    identical: int = 0
    unformed: int = 0  # consecutive generations whose ranks did not reach each other
    best_step: int | None = None
    replicas: int | None = None
    shift: int = 0  # from each replica to its buddy, see buddies.py
    startup_s: float = 0.0

    @classmethod
    def parse(cls, fields: Mapping[str, Any]) -> "CoordinatorState":
        """From JSON; ValueError if a field has another type, or is negative."""
        found: CoordinatorState = checked(cls, fields)
        if any(value is not None and value < 0 for value in vars(found).values()):
            raise ValueError("negative number in the state")
        return found


class OtherProtocolError(Exception):
    """An agent of another build; both agents log the message."""

    def __init__(self, theirs: int) -> None:
        super().__init__(
            f"this agent has protocol version {theirs}, replica 0 has {PROTOCOL}: their images contain "
            "different versions of dtj. Pin the image by digest (name@sha256:...)"
        )


@dataclass(frozen=True, kw_only=True)
class RankState:
    """What an agent knows about one of its ranks; messages about it may have been lost with a connection.

    generation   that it is part of, or is about to be started in
    holds        it has the run in memory and can join a new generation without a restart
    is_ready     it waits, or waited, until that generation was complete
    lost         it lost its peers, or never reached them (is_unformed), and waits
    ending       how it ended; None while it is alive
    """

    generation: int
    holds: bool = False
    is_ready: bool = False
    is_unformed: bool = False
    lost: Ending | None = None
    ending: Ending | None = None

    def belongs_to(self, generation: int) -> bool:
        """It is, or was until it exited by itself, a rank of that generation."""
        return self.generation == generation and not (self.ending and self.ending.by_agent)


@dataclass(frozen=True, kw_only=True)
class Keeper:
    """The process of an agent that keeps copies of another replica's state; see copies/keeper.py.

    token    its clients must know it
    machine  an id that the agents of one node have in common
    """

    port: int
    token: str
    machine: str


@dataclass(frozen=True, kw_only=True)
class Hello:
    """The first message on every connection of an agent.

    incarnation  a new id for every agent process
    processes    its number of ranks
    restarts     of the job before this pod was created: of two pods of a replica, that with more is the newer
    is_stopping  its pod was asked to terminate
    ranks        of its replica, those that were started
    keeper       None if it keeps no copies for others
    allowed      in-place restarts in this attempt, the spent ones included, by what the operator knew when it
                 created the pod; None: unknown
    """

    uid: str
    attempt: int
    replica: int
    incarnation: str
    processes: int = 1
    restarts: int = 0
    is_stopping: bool = False
    ranks: Mapping[int, RankState] = field(default_factory=dict)
    state: CoordinatorState = CoordinatorState()
    keeper: Keeper | None = None
    allowed: int | None = None

    @property
    def healable(self) -> frozenset[int]:
        """Ranks that can join a new generation without a restart."""
        return frozenset(r for r, known in self.ranks.items() if known.holds and known.ending is None)

    @classmethod
    def parse(cls, fields: Any) -> "Hello":
        """From JSON; ValueError if it is not from an agent, OtherProtocolError if from another build."""
        try:
            if (theirs := int(fields["protocol"])) != PROTOCOL:
                raise OtherProtocolError(theirs)
            return cls(
                uid=checked(str, fields["uid"]),
                attempt=checked(int, fields["attempt"]),
                replica=checked(int, fields["replica"]),
                incarnation=checked(str, fields["incarnation"]),
                processes=checked(int, fields["processes"]),
                restarts=checked(int, fields["restarts"]),
                is_stopping=checked(bool, fields["isStopping"]),
                ranks=checked(dict[int, RankState], fields["ranks"]),
                state=CoordinatorState.parse(fields["state"]),
                keeper=checked(Keeper | None, fields["keeper"]),
                allowed=checked(int | None, fields.get("allowed")),  # older agents do not say it
            )
        except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
            raise ValueError(f"not a hello of an agent: {fields}") from error


@dataclass(frozen=True)
class Form:
    """Start a generation with all ranks; those not in `kept` are restarted.

    replicas    0 to replicas - 1 take part; further replicas of an elastic job wait
    gracefully  running ranks are first asked to save and stop
    connect_s   how long a rank may take to reach all others, once all are ready
    """

    generation: int
    kept: frozenset[int]
    replicas: int
    gracefully: bool = False
    connect_s: float = CONNECT_S


@dataclass(frozen=True)
class Go:
    """All ranks of the generation are ready: open the process groups.

    agent  its incarnation: only this one may have missed it
    """

    generation: int
    agent: str | None = None


@dataclass(frozen=True)
class Refuse:
    """This agent may not join; `for_good`: a retry will not help."""

    incarnation: str
    why: str
    for_good: bool


@dataclass(frozen=True)
class End:
    """The job is over for all agents. `culprit` is the failure that ended it, if any."""

    culprit: Ending | None


@dataclass(frozen=True)
class Say:
    """A line of the log."""

    text: str


Action = Form | Go | Refuse | End | Say
