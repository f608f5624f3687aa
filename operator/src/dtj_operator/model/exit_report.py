"""How the ranks of a pod ended, as the trainer reports it in its termination message: docs/contract.md.

It is parsed once, when the pod is decoded. The message is written by the user's container, so a field of
another type counts as absent, and a message that is not such a report is plain text.
"""

import contextlib
import json
import sys
from typing import Annotated

import msgspec

from dtj_operator.model.json import Json
from dtj_operator.model.reported import MAX_IN_PLACE, Reported

_Count = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]  # fits into the API's int32
_Restarts = Annotated[int, msgspec.Meta(ge=0, le=MAX_IN_PLACE)]
_Number = Annotated[float, msgspec.Meta(ge=-sys.float_info.max, le=sys.float_info.max)]


class Culprit(Reported, frozen=True, gc=False, kw_only=True):
    """The rank of another replica that failed the job, as the ranks that lost it learned it."""

    replica: _Count
    reason: str = ""
    rank: _Count | None = None
    exit_code: _Count | None = None
    message: str = ""
    generation: _Count | None = None
    at: str = ""  # RFC 3339


class ExitReport(Reported, frozen=True, gc=False, kw_only=True):
    reason: str = ""
    message: str = ""
    at: str = ""  # RFC 3339
    rank: _Count | None = None
    generation: _Count | None = None
    step: _Count | None = None
    total_steps: _Count | None = None
    epoch: _Count | None = None
    loss: _Number | None = None
    samples_per_second: _Number | None = None
    in_place: _Restarts | None = None  # restarts in place of this attempt
    without_progress: _Restarts | None = None  # restarts in a row since the last progress
    identical_failures: _Restarts | None = None  # in a row, with this error of the program and without a step
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
    if isinstance(culprit := found.get("culprit"), dict):
        found["culprit"] = _valid(Culprit, culprit)
    return msgspec.convert(_valid(ExitReport, found), ExitReport)


def _valid(kind: type[Reported], found: Json) -> Json:
    """The fields whose values are of the right type."""
    valid = {}
    for field in msgspec.structs.fields(kind):
        with contextlib.suppress(msgspec.ValidationError):
            value = found.get(field.encode_name)
            msgspec.convert(value, field.type)
            valid[field.encode_name] = value
    return valid
