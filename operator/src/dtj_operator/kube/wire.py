"""JSON structures that all kinds of the API share: metadata, pages of a list, lines of a watch.

Decoding ignores unknown fields, so newer API servers are not a problem.
"""

from collections.abc import Callable
from datetime import datetime
from typing import Generic, Literal, TypeVar

import msgspec

from dtj_operator import names

T = TypeVar("T")
U = TypeVar("U")


class Wire(msgspec.Struct, rename="camel", gc=False):
    """Base class: names in JSON are camelCase."""


class Owner(Wire):
    uid: str = ""
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
    creation_timestamp: datetime | None = None
    deletion_timestamp: str | None = None
    deletion_grace_period_seconds: int | None = None

    @property
    def job(self) -> Owner:
        """The DistributedTrainingJob that controls the object; empty if there is none."""
        return next((o for o in self.owner_references if o.controller and o.kind == names.KIND), Owner())


class ListMeta(Wire):
    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")


class Page(Wire, Generic[T]):
    """A page of a list."""

    metadata: ListMeta
    items: list[T] = []

    def each(self, view: Callable[[T], U]) -> "Page[U]":
        """Return the same page with `view` applied to each item."""
        return Page(metadata=self.metadata, items=[view(item) for item in self.items])


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


decode_event = msgspec.json.Decoder(WatchEvent).decode
decode_failure = msgspec.json.Decoder(Failure).decode
decode_named = msgspec.json.Decoder(Named).decode
decode_names = msgspec.json.Decoder(Page[Named]).decode
