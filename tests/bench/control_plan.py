"""Slow events of a healthy run: seed -> which step is slow, why, for how long, on which rank. Pure.

Every rank computes the same plan, so that they evaluate and save together; harness and test read it too.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

START_UP = "slow start"
KINDS = ("slow steps", "frozen process", "garbage collection", "evaluation", "checkpoint", "declared pause")
# What plain scripts do without declaring it; such an event may last ten minutes.
PLAIN_KINDS = ("slow steps", "garbage collection", "evaluation", "checkpoint", "recompilation", "download")
_LONGEST_PLAIN_S = 600.0
# A slow step takes this many times the usual if that stays below 30 s, which is never a hang ...
_TIMES, _LEAST_S = 10.0, 30.0
# ... and otherwise this many times.
_TIMES_OF_LONG_STEPS = 4.0
_GAP_S = 10.0


@dataclass(frozen=True, kw_only=True)
class Event:
    """One step, or its end, that takes longer than usual.

    seconds  beyond the usual; unknown in advance for a garbage collection or a recompilation
    rank     that is slow; None if all are
    """

    kind: str
    seconds: float
    rank: int | None


def plan(
    seed: int, *, seconds: float, step_s: float, ranks: int, kinds: tuple[str, ...] = KINDS
) -> dict[int, Event]:
    """Events by step, every kind in turn; with the usual steps between them they last about `seconds`."""
    rng = Random(seed)
    start = Event(kind=START_UP, seconds=rng.uniform(40, 200), rank=rng.choice([None, *range(ranks)]))
    found = {rng.randrange(3): start}
    step, spent_s = 4, start.seconds + 4 * step_s
    for kind in _shuffled(rng, kinds):
        gap = max(2, round(rng.expovariate(1 / _GAP_S) / step_s))
        step, spent_s = step + gap, spent_s + gap * step_s
        if spent_s >= seconds:
            return found
        who = rng.choice([None, *range(ranks)])
        for _ in range(rng.randint(1, 6) if kind == "slow steps" else 1):
            found[step] = Event(
                kind=kind, seconds=_length(rng, kind, step_s, is_plain=kinds == PLAIN_KINDS), rank=who
            )
            step, spent_s = step + 1, spent_s + step_s + found[step].seconds
    raise AssertionError("kinds never end")


def _shuffled(rng: Random, kinds: tuple[str, ...]) -> Iterator[str]:
    """All kinds, in a different order each time."""
    while True:
        yield from rng.sample(kinds, len(kinds))


def _length(rng: Random, kind: str, step_s: float, *, is_plain: bool) -> float:
    match kind:
        case "slow steps":
            times = _TIMES if _TIMES * step_s < _LEAST_S else _TIMES_OF_LONG_STEPS
            return (times - 1) * step_s
        case "frozen process":
            return rng.uniform(5, 20)
        case "garbage collection" | "recompilation":
            return 0.0
        case _ if is_plain:  # most are short, some are very long
            return 40 * math.pow(_LONGEST_PLAIN_S / 40, rng.random() ** 2)
        case _:
            return rng.uniform(40, 90)
