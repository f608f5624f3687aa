"""Log lines, status and agents' answers -> curves and a heat map. Pure.

All of it comes from users' programs, so a value of a wrong type is left out.
"""

import json
import math
import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from dtj_client.kubectl import Json
from dtj_client.logs import Line
from dtj_client.ui.views import number

POINTS = 600  # of a curve: more than a screen can show
_CELLS = 30_000  # of a heat map
_COLUMNS = 120

_STEP = re.compile(r"(?:\[rank 0\] )?step (\d+)(?:/\d+)?  ")
_LOSS = re.compile(r"  loss (\S+)")
_RATE = re.compile(r"  (\S+) samples/s")


@dataclass(frozen=True)
class Reading:
    """What was logged after a step.

    at    RFC 3339
    rate  samples per second of the job
    """

    at: str
    step: int
    loss: float | None
    rate: float | None


def of_line(line: Line) -> Reading | None:
    """The reading of a line that rank 0 logs in either format; None for any other line."""
    if line.rank not in (0, None):
        return None
    if line.text.startswith("{"):
        return _of_json(line)
    step = _STEP.match(line.text)
    if step is None:
        return None
    loss, rate = (pattern.search(line.text) for pattern in (_LOSS, _RATE))
    return Reading(line.at, int(step[1]), number(loss and loss[1]), number(rate and rate[1]))


def _of_json(line: Line) -> Reading | None:
    try:
        found = json.loads(line.text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or not _is_count(found.get("step")):
        return None
    return Reading(line.at, found["step"], _real(found.get("loss")), _real(found.get("samplesPerSecond")))


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
        if isinstance(each, dict) and _is_count(each.get("rank")) and _is_count(each.get("step")):
            yield each["rank"], each["step"]


def of_lines(lines: Iterable[Line]) -> list[Reading]:
    """The readings of a log."""
    return [reading for line in lines if (reading := of_line(line)) is not None]


def _round(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.3g}")


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53


def _real(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None
