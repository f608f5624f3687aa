"""Readings, status and agents' answers -> curves and a heat map. Pure.

All of it comes from users' programs, so a value of a wrong type is left out.
"""

import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from dtj_client.kube.kubectl import Json
from dtj_client.show.readings import Reading, is_count, number

POINTS = 600  # of a curve: more than a screen can show
_CELLS = 30_000  # of a heat map
_COLUMNS = 120


def of_status(status: Json) -> Reading | None:
    """The reading in a job's status; None if there is none."""
    progress = status.get("progress") or {}
    if progress.get("step") is None or not progress.get("observedAt"):
        return None
    return Reading(
        progress["observedAt"],
        progress["step"],
        number(progress.get("loss")),
        number(progress.get("samplesPerSecond")),
    )


def curves(readings: Sequence[Reading]) -> Json:
    """Points of loss by step and of rate by time; None ends a line, as a restart repeats steps."""
    return {
        "loss": _thin([[step, value] for step, value in _runs(readings)]),
        "rate": _thin([[each.at, each.rate] for each in readings if each.rate is not None]),
    }


def _runs(readings: Sequence[Reading]) -> Iterator[tuple[int, float | None]]:
    last = -1
    for each in readings:
        if each.loss is None:
            continue
        if each.step < last:
            yield each.step, None
        yield each.step, each.loss
        last = each.step


def _thin(points: list[list[Any]]) -> list[list[Any]]:
    """Every n-th point, the last one, and all gaps."""
    every = math.ceil(len(points) / POINTS) or 1
    last = len(points) - 1
    return [
        each for index, each in enumerate(points) if index % every == 0 or index == last or each[1] is None
    ]


@dataclass
class StepTimes:
    """How long a step takes each rank, as a column for each answer of replica 0's agent.

    A rank that completes no step gets the time for which it has not, so that a hang grows.
    """

    columns: deque[tuple[str, dict[int, float]]] = field(default_factory=lambda: deque(maxlen=_COLUMNS))
    _stepped: dict[int, tuple[int, float]] = field(default_factory=dict)  # rank -> step, seconds of the clock

    def see(self, answer: Json, at: str, now: float) -> None:
        """Add an answer of /status.

        at   RFC 3339
        now  seconds of any clock
        """
        column: dict[int, float] = {}
        before = self.columns[-1][1] if self.columns else {}
        for rank, step in steps_of(answer):
            known, since = self._stepped.get(rank, (step, now))
            if step > known:
                column[rank] = (now - since) / (step - known)
            elif rank in self._stepped and step == known:
                column[rank] = max(now - since, before.get(rank, 0.0))
            if step != known or rank not in self._stepped:
                self._stepped[rank] = (step, now)
        if column:
            self.columns.append((at, column))

    def heat(self) -> Json:
        """Ranks, times, and the seconds of a step: a list for each time, in the order of the ranks."""
        ranks = sorted({rank for _, column in self.columns for rank in column})
        width = max(20, min(_COLUMNS, _CELLS // max(1, len(ranks))))
        shown = list(self.columns)[-width:]
        return {
            "ranks": ranks,
            "times": [at for at, _ in shown],
            "seconds": [[_round(column.get(rank)) for rank in ranks] for _, column in shown],
        }


def steps_of(answer: Json) -> Iterator[tuple[int, int]]:
    """Rank and last step of each rank that an agent lists."""
    ranks = answer.get("ranks")
    for each in ranks if isinstance(ranks, list) else ():
        if isinstance(each, dict) and is_count(each.get("rank")) and is_count(each.get("step")):
            yield each["rank"], each["step"]


def _round(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.3g}")
