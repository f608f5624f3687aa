"""How the ranks of a pod ended, as the trainer reports it in its termination message: docs/contract.md.

It is parsed once, when the pod is decoded. The message is written by the user's container, so a field of
another type counts as absent, and a message that is not such a report is plain text.
"""

import json

import msgspec

from dtj_operator.printable import printable


class ExitReport(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    reason: str = ""
    message: str = ""
    at: str = ""  # RFC 3339
    rank: int | None = None
    generation: int | None = None
    step: int | None = None
    in_place: int | None = None  # restarts in place of this attempt


NO_REPORT = ExitReport()


def parse(message: str) -> ExitReport:
    """Return NO_REPORT if the message is plain text."""
    if not message.startswith("{"):
        return NO_REPORT
    try:
        found = json.loads(message)
    except (ValueError, RecursionError):
        return NO_REPORT
    return ExitReport(
        reason=_text(found.get("reason")),
        message=_text(found.get("message")),
        at=_text(found.get("at")),
        rank=count(found.get("rank")),
        generation=count(found.get("generation")),
        step=count(found.get("step")),
        in_place=count(found.get("inPlace")),
    )


def _text(value: object) -> str:
    return printable(value) if isinstance(value, str) else ""


def count(value: object) -> int | None:
    """A count from the user's program, if it is valid and fits into the API's int32."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31 else None
