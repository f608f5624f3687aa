"""What the log lines of `dtj` say about steps, in both formats. Pure.

All of it comes from users' programs, so a value of a wrong type is left out.
"""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass

from dtj_client.show.logs import Line

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
    if not isinstance(found, dict) or not is_count(found.get("step")):
        return None
    return Reading(line.at, found["step"], _real(found.get("loss")), _real(found.get("samplesPerSecond")))


def of_lines(lines: Iterable[Line]) -> list[Reading]:
    """The readings of a log."""
    return [reading for line in lines if (reading := of_line(line)) is not None]


def number(text: str | None) -> float | None:
    """A number that is there as text; None if it is none."""
    try:
        found = float(text or "")
    except ValueError:
        return None
    return found if abs(found) < float("inf") else None


def is_count(value: object) -> bool:
    """Whether it can be a number of steps."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53


def _real(value: object) -> float | None:
    return number(str(value)) if isinstance(value, int | float) else None
