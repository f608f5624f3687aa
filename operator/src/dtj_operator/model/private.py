"""status.memory: what the operator has to remember of a job and no user needs.

It is read and written as one typed object. The schema does not list its fields, so that the API server keeps
the fields of a newer operator while an older schema is installed.
"""

from typing import Annotated, Any

import msgspec

from dtj_operator.model.json import Json
from dtj_operator.model.ranges import HIGHEST

# Bounded, because the planner goes through all replicas of the size that it reads here.
_Replicas = Annotated[int, msgspec.Meta(ge=0, le=HIGHEST + 1)]


class Shortage(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """An attempt of scope Job is smaller than spec.replicas, because some of its pods were unschedulable."""

    replicas: _Replicas  # the desired size, which did not fit
    tries: int  # how many times it did not fit
    retry_at: int  # seconds since the epoch


class Counters(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Of restarts, beside those in status.restarts; those in a row are without progress."""

    in_place_of_attempt: int = 0  # in-place restarts in the current attempt
    identical: int = msgspec.field(default=0, name="identicalFailures")  # in a row, of the program
    uncounted: int = msgspec.field(default=0, name="uncountedRestarts")  # in a row, of no budget
    counted_at: tuple[int, ...] = ()  # seconds since the epoch of those that may still count, oldest first
    highest_step: int | None = None  # ever reported; only a higher step is progress
    # In all, when pods were last replaced; their successors know of them.
    at_replacement: int = msgspec.field(default=0, name="restartsAtReplacement")

    def counters(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in Counters.__struct_fields__}


class Private(Counters, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """All of it is bounded: as small for 10,000 replicas as for two, unless they finish in random order."""

    rejoins: bool = False  # agents of this attempt have said that they can recover in place
    wanted_replicas: _Replicas | None = None  # the recorded size of the attempt; elastic jobs only
    replacing: dict[int, str] = {}  # uids of pods being replaced, by index; empty if the pod was already gone
    done: str = ""  # replicas of the attempt that have succeeded, such as 0-3,7
    shortage: Shortage | None = None
    earlier_seconds: dict[str, int] = {}  # the part of status.goodput that earlier attempts took


def read(status: Json) -> Private:
    """Return the stored object; one that does not decode, because a person edited it, counts as empty."""
    try:
        return msgspec.convert(status.get("memory") or {}, Private, strict=False, str_keys=True)
    except msgspec.ValidationError:
        return Private()


def write(private: Private) -> Json:
    fields: Json = msgspec.json.decode(msgspec.json.encode(private))
    return fields
