"""How the ranks of a pod ended, as the trainer reports it in its termination message: docs/contract.md.

It is parsed once, when the pod is decoded. The message is written by the user's container, so a field of
another type counts as absent, and a message that is not such a report is plain text.
"""

import json

import msgspec

from dtj_operator.model.printable import printable


class Culprit(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """The rank of another replica that failed the job, as the ranks that lost it learned it."""

    replica: int
    reason: str = ""
    rank: int | None = None
    exit_code: int | None = None
    message: str = ""
    generation: int | None = None
    step: int | None = None
    at: str = ""  # RFC 3339


class ExitReport(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    reason: str = ""
    message: str = ""
    at: str = ""  # RFC 3339
    rank: int | None = None
    generation: int | None = None
    step: int | None = None
    in_place: int | None = None  # restarts in place of this attempt
    without_progress: int | None = None  # restarts in a row since the last progress
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
    return ExitReport(
        reason=_text(found.get("reason")),
        message=_text(found.get("message")),
        at=_text(found.get("at")),
        rank=count(found.get("rank")),
        generation=count(found.get("generation")),
        step=count(found.get("step")),
        in_place=count(found.get("inPlace")),
        without_progress=count(found.get("withoutProgress")),
        culprit=_culprit(found.get("culprit")),
    )


def _culprit(found: object) -> Culprit | None:
    if not isinstance(found, dict) or (replica := count(found.get("replica"))) is None:
        return None
    return Culprit(
        replica=replica,
        reason=_text(found.get("reason")),
        rank=count(found.get("rank")),
        exit_code=count(found.get("exitCode")),
        message=_text(found.get("message")),
        generation=count(found.get("generation")),
        step=count(found.get("step")),
        at=_text(found.get("at")),
    )


def _text(value: object) -> str:
    return printable(value) if isinstance(value, str) else ""


def count(value: object) -> int | None:
    """A count from the user's program, if it is valid and fits into the API's int32."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31 else None
