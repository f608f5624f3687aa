"""What an agent tells the coordinator after its hello, as checked values. Pure.

The dictionaries on the connection are the ones that rank_events.py, orders.py and launch.py send.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from dtj.agent.wire.checked import checked
from dtj.agent.wire.outcome import Ending
from dtj.agent.wire.probe import Probe
from dtj.agent.wire.signs import Activity, Heartbeat


@dataclass(frozen=True)
class Ready:
    """A rank waits until its generation is complete."""

    rank: int
    generation: int


@dataclass(frozen=True)
class Hold:
    """Whether a rank holds the run in memory."""

    rank: int
    holds: bool


@dataclass(frozen=True)
class Heartbeats:
    """New heartbeats of the agent's ranks."""

    ranks: Mapping[int, Heartbeat]


@dataclass(frozen=True)
class Activities:
    """The activity of ranks without a step."""

    ranks: Mapping[int, Activity]


@dataclass(frozen=True)
class Probes:
    """What the agent's ranks do; `number` is that of the request."""

    ranks: Mapping[int, Probe]
    number: int


@dataclass(frozen=True)
class Saves:
    """Whether a rank can write checkpoints; only rank 0 says so."""

    rank: int
    works: bool


@dataclass(frozen=True)
class Stopping:
    """The pod was asked to terminate."""


@dataclass(frozen=True)
class Failure:
    """A rank lost its peers, did not reach them, is failing, or has ended."""

    kind: Literal["lost", "unformed", "failing", "ended"]
    ending: Ending
    generation: int


Fact = Ready | Hold | Heartbeats | Activities | Probes | Saves | Stopping | Failure


def parse(message: Mapping[str, Any], *, ranks: range) -> Fact | None:
    """The fact; None if the message says only that the agent is alive, ValueError if it is malformed.

    ranks  of the sender: an agent speaks for no other
    """
    fact = _parse_of_rank(message) or _parse(message)
    match fact:
        case Ready(rank=rank) | Hold(rank=rank) | Saves(rank=rank) | Failure(ending=Ending(rank=rank)):
            named: set[int] = {rank}
        case Heartbeats(ranks=known) | Activities(ranks=known) | Probes(ranks=known):
            named = set(known)
        case _:
            named = set()
    if not named <= set(ranks):
        raise ValueError(f"ranks {named} are not the sender's")
    return fact


def _parse_of_rank(message: Mapping[str, Any]) -> Fact | None:
    """What one rank says."""
    match message:
        case {"ready": found}:
            return Ready(*checked(tuple[int, int], found))
        case {"hold": rank, "holds": holds}:
            return Hold(checked(int, rank), checked(bool, holds))
        case {"saves": rank, "works": works}:
            return Saves(checked(int, rank), checked(bool, works))
    return None


def _parse(message: Mapping[str, Any]) -> Fact | None:
    match message:
        case {"heartbeats": found}:
            return Heartbeats(checked(dict[int, Heartbeat], found))
        case {"activity": found}:
            return Activities(checked(dict[int, Activity], found))
        case {"probes": found, "number": number}:
            return Probes(checked(dict[int, Probe], found), checked(int, number))
        case {"stopping": _}:
            return Stopping()
        case (
            {"lost": found, "generation": generation}
            | {"unformed": found, "generation": generation}
            | {"failing": found, "generation": generation}
            | {"ended": found, "generation": generation}
        ):
            kind: Any = next(name for name in ("lost", "unformed", "failing", "ended") if name in message)
            return Failure(kind, checked(Ending, found), checked(int, generation))
    return None
