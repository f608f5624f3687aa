"""Goodput from the ranks' own books, to compare with the job's status. Pure; times are seconds since 1970."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, kw_only=True)
class Line:
    """An entry of a rank: a step is done, or (step None) its process started."""

    at: float
    step: int | None


def parse(text: str) -> list[Line]:
    """Lines `<time> start` and `<time> <step>`; an incomplete last line of a killed rank is skipped."""
    found = []
    for line in text.splitlines(keepends=True):
        at, _, what = line.rstrip("\n").partition(" ")
        if line.endswith("\n") and what:
            found.append(Line(at=float(at), step=None if what.startswith("start") else int(what)))
    return found


def productive(books: list[list[Line]], *, until: float) -> float:
    """Seconds of steps, up to a time, that advanced the run and during which no rank restarted.

    books  one per rank; rank 0's steps are the job's
    """
    starts = sorted(line.at for book in books for line in book if line.step is None)
    best, total = 0, 0.0
    for before, line in pairwise(each for each in books[0] if each.at <= until):
        if line.step is None:
            continue
        moved = before.step is not None and line.step == before.step + 1 and line.step > best
        if moved and not _any_between(starts, before.at, line.at):
            total += line.at - before.at
        best = max(best, line.step)
    return total


def _any_between(times: Iterable[float], begin: float, end: float) -> bool:
    return any(begin < at <= end for at in times)
