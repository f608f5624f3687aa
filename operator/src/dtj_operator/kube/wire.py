"""Shapes of the API's JSON that all kinds share: metadata, pages of a list, lines of a watch.

Decoding ignores fields it does not know, so newer API servers do no harm.
"""

from collections.abc import Callable
from datetime import datetime
from typing import Generic, Literal, TypeVar

import msgspec

from dtj_operator import names

T = TypeVar("T")
U = TypeVar("U")


class Wire(msgspec.Struct, rename="camel", gc=False):
    """Base of the shapes: JSON names are camelCase."""


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
        """The job of ours that controls the object; empty where there is none."""
        return next((o for o in self.owner_references if o.controller and o.kind == names.KIND), Owner())


class ListMeta(Wire):
    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")


class Page(Wire, Generic[T]):
    """A page of a list."""

    metadata: ListMeta
    items: list[T] = []

    def each(self, view: Callable[[T], U]) -> "Page[U]":
        """The same page with something else made of each item."""
        return Page(metadata=self.metadata, items=[view(item) for item in self.items])


class WatchEvent(Wire):
    """One line of a watch; what `object` is depends on `type`."""

    type: Literal["ADDED", "MODIFIED", "DELETED", "BOOKMARK", "ERROR"]
    object: msgspec.Raw


class Failure(Wire):
    """The `object` of an ERROR event."""

    code: int = 0
    message: str = ""


class Named(Wire):
    """Any object at all, or a bookmark."""

    metadata: Meta


decode_event = msgspec.json.Decoder(WatchEvent).decode
decode_failure = msgspec.json.Decoder(Failure).decode
decode_named = msgspec.json.Decoder(Named).decode
decode_names = msgspec.json.Decoder(Page[Named]).decode
