"""Crashes drawn from a seed, and whether the right rank was blamed. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from random import Random
from typing import Any

RANKS, PROCESSES = 4, 2
STEPS, SAVE_EVERY = 12, 4
# How a rank dies -> the expected reason and exit code.
HOWS = {
    "raise": ("Exception", 1),
    "exit": ("ExitCode", 3),
    "vanish": ("ExitCode", 5),
    "SIGKILL": ("Signal", 137),
    "SIGSEGV": ("Signal", 139),
}
# Ways that need no Python in the main thread, which may be inside a collective.
_SUDDEN = ("vanish", "SIGKILL", "SIGSEGV")
# Place -> the ways of dying that are possible there.
PLACES: dict[str, tuple[str, ...]] = {
    "start-up": tuple(HOWS),
    "rendezvous": _SUDDEN,
    "forward": tuple(HOWS),
    "end of a step": tuple(HOWS),
    "save": _SUDDEN,
    "healing": tuple(HOWS),
    "several at once": tuple(HOWS),
}


@dataclass(frozen=True, kw_only=True)
class Death:
    """Death of one rank. `delay_ms` is the time between the point in the program and the death."""

    rank: int
    how: str
    place: str
    step: int = 0
    delay_ms: float = 0.0
    life: int = 1


@dataclass(frozen=True, kw_only=True)
class Crash:
    """What happens to a job; the first death that ends the job is the one to blame.

    restarts  the job's budget: one if the death to blame happens during the recovery from another
    """

    place: str
    deaths: tuple[Death, ...]
    restarts: int = 0

    def to_json(self) -> list[dict[str, Any]]:
        """The deaths, as the ranks read them."""
        return [asdict(death) for death in self.deaths]


def draw(count: int, seed: int) -> list[Crash]:
    """Draw `count` crashes, with every place equally often."""
    random = Random(seed)
    places = list(PLACES)
    return [_crash(places[number % len(places)], random) for number in range(count)]


def _crash(place: str, random: Random) -> Crash:
    rank, how = random.randrange(RANKS), random.choice(PLACES[place])
    step = random.randint(1, STEPS - 3)
    if place == "start-up":
        delay_ms = random.uniform(0, 50) if how in _SUDDEN else 0.0
        return Crash(place=place, deaths=(Death(rank=rank, how=how, place="start", delay_ms=delay_ms),))
    if place == "rendezvous":
        death = Death(rank=rank, how=how, place="init", delay_ms=random.uniform(0, 100))
        return Crash(place=place, deaths=(death,))
    if place == "save":
        death = Death(rank=rank, how=how, place="save", step=SAVE_EVERY, delay_ms=random.uniform(0, 100))
        return Crash(place=place, deaths=(death,))
    if place == "healing":
        first = Death(rank=rank, how="SIGKILL", place="forward", step=step)
        second = Death(rank=rank, how=how, place="start", life=2)
        return Crash(place=place, deaths=(first, second), restarts=1)
    if place == "several at once":
        others = random.sample([r for r in range(RANKS) if r != rank], random.randint(1, 2))
        first = Death(rank=rank, how=how, place="end", step=step)
        echoes = [
            Death(
                rank=r, how=random.choice(_SUDDEN), place="end", step=step, delay_ms=random.uniform(60, 200)
            )
            for r in others
        ]
        return Crash(place=place, deaths=(first, *echoes))
    point = "forward" if place == "forward" else "end"
    return Crash(place=place, deaths=(Death(rank=rank, how=how, place=point, step=step),))


def is_right(truth: Mapping[str, Any], messages: Mapping[int, Mapping[str, Any]]) -> tuple[bool, bool]:
    """Whether the job's verdict has the right rank, and the right class and exit code.

    truth     recorded by the rank that died first: rank, how
    messages  replica -> its termination message; the operator uses the earliest that is not a consequence
    """
    verdict = min(messages.values(), key=lambda message: (message["reason"] == "PeerLost", message["at"]))
    verdict = verdict["culprit"] or verdict
    named = verdict["rank"] == truth["rank"]
    return named, (verdict["reason"], verdict["exitCode"]) == HOWS[truth["how"]]
