"""JSON structures that all kinds of the API share: metadata, pages of a list, lines of a watch.

Decoding ignores unknown fields, so newer API servers are not a problem.
"""

import logging
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, Literal, TypeVar

import msgspec

from dtj_operator.model import names

T = TypeVar("T")
U = TypeVar("U")

DEEPEST = 100  # levels of nesting that `pruned` keeps; no field that the operator reads is nearly as deep
UNREADABLE = (msgspec.MsgspecError, ValueError, RecursionError)  # what decoding can raise

_log = logging.getLogger(__name__)
_BRACKETS = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{}]', re.DOTALL)


class Wire(msgspec.Struct, rename="camel", gc=False):
    """Base class: names in JSON are camelCase."""


def seconds(moment: datetime | None) -> float | None:
    """Return seconds since the epoch."""
    return moment.timestamp() if moment else None


class Owner(Wire):
    uid: str = ""
    api_version: str = ""
    kind: str = ""
    name: str = ""
    controller: bool = False


class Meta(Wire):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    labels: dict[str, str] = {}
    owner_references: list[Owner] = []
    finalizers: list[str] = []
    deletion_timestamp: datetime | None = None
    deletion_grace_period_seconds: int | None = None

    @property
    def job(self) -> Owner:
        """The DistributedTrainingJob, of any version, that controls the object; empty if there is none."""
        for owner in self.owner_references:
            # Another API group may have a kind of that name too.
            group = owner.api_version.partition("/")[0]
            if owner.controller and (group, owner.kind) == (names.GROUP, names.KIND):
                return owner
        return Owner()

    def identity(self) -> dict[str, Any]:
        """The fields of an ObjectView."""
        return {
            "namespace": self.namespace,
            "name": self.name,
            "uid": self.uid,
            "version": self.resource_version,
            "job": self.job.name or self.labels.get(names.JOB_NAME, ""),
            "owner_uid": self.job.uid,
            "deleting": self.deletion_timestamp is not None,
        }


class ListMeta(Wire):
    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")


class Page(Wire, Generic[T]):
    """A page of a list."""

    metadata: ListMeta
    listed: list[T] | None = msgspec.field(default=None, name="items")  # null: an empty list of metadata

    def __post_init__(self) -> None:
        self.listed = self.items

    @property
    def items(self) -> list[T]:
        return self.listed or []


@dataclass(frozen=True, kw_only=True)
class Source(Generic[U]):
    """A kind of objects to read, and how to decode them; raises UNREADABLE for an object or a whole page.

    An object of a page that cannot be decoded is logged and left out: it does not spoil the others.

    path      of the collection, in one namespace or in all
    selector  label selector; empty: all objects
    required  the operator cannot work without it; otherwise the right to read it may be missing
    """

    what: str
    path: Callable[[str | None], str]
    decode: Callable[[bytes | msgspec.Raw], U]
    decode_list: Callable[[bytes], Page[U]]
    selector: str = names.JOB_NAME
    required: bool = True


def source(kind: type[T], view: Callable[[T], U], **fields: Any) -> Source[U]:
    """Return how to read a kind whose objects are decoded and then reduced to views."""
    one = msgspec.json.Decoder(kind).decode

    def decode(raw: bytes | msgspec.Raw) -> U:
        return view(one(raw))

    def decode_page(raw: bytes) -> Page[U]:
        page, found = decode_raw_page(raw), []
        for item in page.items:
            try:
                found.append(decode(item))
            except UNREADABLE as error:
                log_unreadable(item, error)
        return Page(metadata=page.metadata, listed=found)

    return Source(decode=decode, decode_list=decode_page, **fields)


def log_unreadable(raw: msgspec.Raw, error: Exception) -> None:
    """Log that an object cannot be decoded, with its name if that can be read."""
    try:
        meta = decode_named(raw).metadata
        name = f"{meta.namespace}/{meta.name}"
    except UNREADABLE:
        name = ""
    _log.warning("ignoring an object that cannot be decoded", extra={"object": name, "error": str(error)})


class WatchEvent(Wire):
    """One line of a watch; the type of `object` depends on `type`."""

    type: Literal["ADDED", "MODIFIED", "DELETED", "BOOKMARK", "ERROR"]
    object: msgspec.Raw


class Failure(Wire):
    """The `object` of an ERROR event."""

    code: int = 0
    message: str = ""


class Named(Wire):
    """Any object, or a bookmark."""

    metadata: Meta


class _Specified(Wire):
    spec: msgspec.Raw = msgspec.Raw()


def decode_spec(raw: bytes) -> memoryview:
    """Return the JSON of the spec of an object; empty if it has none."""
    return memoryview(_decode_specified(raw).spec)


def pruned(raw: bytes) -> bytes:
    """Replace by null whatever is nested deeper than DEEPEST levels.

    Decoders are recursive. The API server stores custom resources, and lists their fields in
    `metadata.managedFields`, with up to 10,000 levels.
    """
    kept, depth, begin = [], 0, 0
    for token in _BRACKETS.finditer(raw):
        sign = token.group()
        if sign in (b"{", b"["):
            depth += 1
            if depth == DEEPEST + 1:
                kept.append(raw[begin : token.start()])
        elif sign in (b"}", b"]"):
            if depth == DEEPEST + 1:
                kept.append(b"null")
                begin = token.end()
            depth -= 1
    kept.append(raw[begin:])
    return b"".join(kept)


def _at_any_depth(decode: Callable[[bytes], T]) -> Callable[[bytes], T]:
    def decode_pruned(raw: bytes) -> T:
        try:
            return decode(raw)
        except RecursionError:
            return decode(pruned(bytes(raw)))

    return decode_pruned


decode_event = _at_any_depth(msgspec.json.Decoder(WatchEvent).decode)
_decode_specified = msgspec.json.Decoder(_Specified).decode
decode_failure = msgspec.json.Decoder(Failure).decode
decode_named = _at_any_depth(msgspec.json.Decoder(Named).decode)
decode_names = _at_any_depth(msgspec.json.Decoder(Page[Named]).decode)
decode_raw_page = _at_any_depth(msgspec.json.Decoder(Page[msgspec.Raw]).decode)
