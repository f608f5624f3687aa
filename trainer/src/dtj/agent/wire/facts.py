"""What an agent tells the coordinator after its hello, as checked values. Pure.

On the connection a fact is {its name in KINDS: [its fields in order]}.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from dtj.agent.wire.checked import checked
from dtj.agent.wire.outcome import Ending
from dtj.agent.wire.probe import Probe
from dtj.agent.wire.signs import Activity, Heartbeat


class Ready(NamedTuple):
    """A rank waits until its generation is complete."""

    rank: int
    generation: int


class Hold(NamedTuple):
    """Whether a rank holds the run in memory."""

    rank: int
    holds: bool


class Heartbeats(NamedTuple):
    """New heartbeats of the agent's ranks."""

    ranks: Mapping[int, Heartbeat]


class Activities(NamedTuple):
    """The activity of ranks without a step."""

    ranks: Mapping[int, Activity]


class Probes(NamedTuple):
    """What the agent's ranks do; `number` is that of the request."""

    ranks: Mapping[int, Probe]
    number: int


class Saves(NamedTuple):
    """Whether a rank can write checkpoints; only rank 0 says so."""

    rank: int
    works: bool


class Stopping(NamedTuple):
    """The pod was asked to terminate."""


class _Failure(NamedTuple):
    ending: Ending
    generation: int


class Lost(_Failure):
    """A rank is alive and lost its peers."""


class Unformed(_Failure):
    """A rank is alive and did not reach its peers."""


class Failing(_Failure):
    """A rank failed and has not exited yet."""


class Ended(_Failure):
    """A rank exited."""


Fact = Ready | Hold | Heartbeats | Activities | Probes | Saves | Stopping | Lost | Unformed | Failing | Ended
KINDS: Mapping[str, Any] = {
    **{"ready": Ready, "hold": Hold, "heartbeats": Heartbeats, "activity": Activities, "probes": Probes},
    **{"saves": Saves, "stopping": Stopping},
    **{"lost": Lost, "unformed": Unformed, "failing": Failing, "ended": Ended},
}
_NAMES = {kind: name for name, kind in KINDS.items()}


def as_message(fact: Fact) -> dict[str, Any]:
    """The message that `parse` reads, for wire/link.py."""
    return {_NAMES[type(fact)]: fact}


def parse(message: Mapping[str, Any], *, ranks: range) -> Fact | None:
    """The fact; None if the message says only that the agent is alive, ValueError if it is malformed.

    ranks  of the sender: an agent speaks for no other
    """
    name = next(iter(message), "")
    if name not in KINDS:
        return None
    fact: Fact = checked(KINDS[name], message[name])
    match fact:
        case _Failure(ending=Ending(rank=rank)) | Ready(rank=rank) | Hold(rank=rank) | Saves(rank=rank):
            named = {rank}
        case Heartbeats(ranks=known) | Activities(ranks=known) | Probes(ranks=known):
            named = set(known)
        case _:
            named = set()
    if not named <= set(ranks):
        raise ValueError(f"ranks {named} are not the sender's")
    return fact
