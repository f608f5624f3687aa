"""How the ranks of a pod ended, as the trainer reports it in its termination message: docs/contract.md.

It is parsed once, when the pod is decoded. The message is written by the user's container, so a field of
another type counts as absent, and a message that is not such a report is plain text.
"""

import json
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from dtj_operator.model.json import Json
from dtj_operator.model.printable import printable

T = TypeVar("T", bound=msgspec.Struct)


class Culprit(msgspec.Struct, frozen=True, gc=False, kw_only=True, rename="camel"):
    """The rank of another replica that failed the job, as the ranks that lost it learned it."""

    replica: int
    reason: str = ""
    rank: int | None = None
    exit_code: int | None = None
    message: str = ""
    generation: int | None = None
    step: int | None = None
    at: str = ""  # RFC 3339


class ExitReport(msgspec.Struct, frozen=True, gc=False, kw_only=True, rename="camel"):
    reason: str = ""
    message: str = ""
    at: str = ""  # RFC 3339
    rank: int | None = None
    generation: int | None = None
    step: int | None = None
    total_steps: int | None = None
    epoch: int | None = None
    loss: float | None = None
    samples_per_second: float | None = None
    in_place: int | None = None  # restarts in place of this attempt
    without_progress: int | None = None  # restarts in a row since the last progress
    identical_failures: int | None = None  # in a row, with this error of the program and without a step
    culprit: Culprit | None = None


NO_REPORT = ExitReport()


def parse(message: str) -> ExitReport:
    """Return NO_REPORT if the message is plain text."""
    if not message.startswith("{"):
        return NO_REPORT
    try:
        found = json.loads(message)
    except (ValueError, RecursionError):
        return NO_REPORT
    return _read(ExitReport, found)


def _read(kind: type[T], found: Json) -> T:
    """Each field, if its value is of the right type."""
    fields = msgspec.structs.fields(kind)
    return kind(**{field.name: _READERS[field.type](found.get(field.encode_name)) for field in fields})


def _culprit(found: object) -> Culprit | None:
    if not isinstance(found, dict) or count(found.get("replica")) is None:
        return None
    return _read(Culprit, found)


def _text(value: object) -> str:
    return printable(value) if isinstance(value, str) else ""


def _number(value: object) -> float | None:
    """A number from the user's program, if it is one that fits into a float."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if -sys.float_info.max <= value <= sys.float_info.max else None


def count(value: object) -> int | None:
    """A count from the user's program, if it is valid and fits into the API's int32."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31 else None


_READERS: dict[Any, Callable[[object], Any]] = {
    str: _text,
    int: count,
    int | None: count,
    float | None: _number,
    Culprit | None: _culprit,
}
