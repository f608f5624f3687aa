"""Pages of a list, in which one object that cannot be decoded does not spoil the others."""

import logging
from collections.abc import Callable
from typing import TypeVar

import msgspec

from dtj_operator.kube import wire
from dtj_operator.kube.wire import Page

T = TypeVar("T")

_log = logging.getLogger(__name__)


def decode_page(raw: bytes, whole: Callable[[bytes], Page[T]], one: Callable[[msgspec.Raw], T]) -> Page[T]:
    """Decode a page of a list. An item that cannot be decoded is logged and left out, not the whole page."""
    try:
        return whole(raw)
    except wire.UNREADABLE:
        page = wire.decode_raw_page(raw)
    items = []
    for item in page.items:
        try:
            items.append(one(item))
        except wire.UNREADABLE as error:
            log_unreadable(item, error)
    return Page(metadata=page.metadata, listed=items)


def log_unreadable(raw: msgspec.Raw, error: Exception) -> None:
    """Log that an object cannot be decoded, with its name if that can be read."""
    try:
        meta = wire.decode_named(raw).metadata
        name = f"{meta.namespace}/{meta.name}"
    except wire.UNREADABLE:
        name = ""
    _log.warning("ignoring an object that cannot be decoded", extra={"object": name, "error": str(error)})
