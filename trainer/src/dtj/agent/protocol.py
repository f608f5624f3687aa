"""What membership.py is told and decides, as plain data: a job, an agent's hello, a coordinator's actions."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dtj.agent.outcome import Ending
from dtj.agent.sizing import Limits

# Of all that the agents of a job, and its ranks, say to each other. A change that those of an earlier build
# would not understand makes it one more. A refusal keeps its form for good, as do `protocol`, `uid` and
# `attempt` of a hello.
PROTOCOL = 1
# It lasts that long only where somebody dies in that very moment, or packets vanish.
CONNECT_S = 20.0


@dataclass(frozen=True, kw_only=True)
class Job:
    """What an agent and the coordinator must agree on, and how large the job is.

    replicas  of the present generation, or of the next one
    limits    of an elastic job
    saves     it has a checkpoint folder, so that ranks can be stopped and begun anew in another number
    """

    uid: str = ""
    attempt: int = 0
    replicas: int = 1
    processes: int = 1
    limits: Limits | None = None
    saves: bool = False

    @property
    def most(self) -> int:
        """Replicas that it may ever have."""
        return self.limits.most if self.limits else self.replicas

    @property
    def ranks(self) -> range:
        """All of them."""
        return range(self.replicas * self.processes)

    def ranks_of(self, replica: int) -> range:
        """Those of one replica."""
        return range(replica * self.processes, (replica + 1) * self.processes)


@dataclass(frozen=True, kw_only=True)
class RestartBudget:
    """Restarts in place before the job fails; see maxRestarts and maxRestartsWithoutProgress of the API.

    restarts  of this attempt, those spent included
    spent     before this agent began
    """

    restarts: int = 0
    spent: int = 0
    without_progress: int = 3


@dataclass(frozen=True, kw_only=True)
class CoordinatorState:
    """What a coordinator tells all agents, so that its successor on another node goes on with it."""

    generation: int = 0
    in_place: int = 0
    without_progress: int = 0
    unformed: int = 0  # generations in a row whose ranks did not reach each other
    best_step: int | None = None
    replicas: int | None = None

    @classmethod
    def parse(cls, fields: Mapping[str, Any]) -> "CoordinatorState":
        """From JSON."""
        return cls(**{name: fields[name] for name in cls.__dataclass_fields__ if name in fields})


class OtherProtocolError(Exception):
    """An agent of another build; the text is for people, on both sides."""

    def __init__(self, theirs: int) -> None:
        super().__init__(
            f"this agent has protocol version {theirs}, replica 0 has {PROTOCOL}: their images contain "
            "different versions of dtj. Pin the image by digest (name@sha256:...)"
        )


@dataclass(frozen=True, kw_only=True)
class Hello:
    """How an agent presents itself; `incarnation` is a new id for every process of an agent."""

    uid: str
    attempt: int
    replica: int
    incarnation: str
    healable: frozenset[int] = frozenset()
    state: CoordinatorState = CoordinatorState()

    @classmethod
    def parse(cls, fields: Any) -> "Hello":
        """From JSON; ValueError where it is no agent's, OtherProtocolError where it is of another build's."""
        try:
            if (theirs := int(fields["protocol"])) != PROTOCOL:
                raise OtherProtocolError(theirs)
            return cls(
                uid=str(fields["uid"]),
                attempt=int(fields["attempt"]),
                replica=int(fields["replica"]),
                incarnation=str(fields["incarnation"]),
                healable=frozenset(fields["healable"]),
                state=CoordinatorState.parse(fields["state"]),
            )
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise ValueError(f"no agent's hello: {fields}") from error


@dataclass(frozen=True)
class Form:
    """Bring all ranks together; those not in `kept` are started anew.

    replicas    how many take part, from 0 on; the others of an elastic job wait
    gracefully  ranks that live are first asked to save and to stop
    connect_s   how long a rank may take to reach all others, once all are there
    """

    generation: int
    kept: frozenset[int]
    replicas: int
    gracefully: bool = False
    connect_s: float = CONNECT_S


@dataclass(frozen=True)
class Go:
    """All ranks of the generation are there: open the process groups."""

    generation: int


@dataclass(frozen=True)
class Refuse:
    """This agent has no place here; `for_good` where another try cannot help."""

    incarnation: str
    why: str
    for_good: bool


@dataclass(frozen=True)
class End:
    """The job is over for all agents; `culprit` failed and was not restarted."""

    culprit: Ending | None


Action = Form | Go | Refuse | End
