"""A thread pool that an interruption ends."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any


class Pool(ThreadPoolExecutor):
    """If its block raises, calls that have not begun are dropped; those that run are still waited for."""

    def __exit__(self, kind: type[BaseException] | None, *_: BaseException | TracebackType | None) -> Any:
        """As of the base class, which would make all waiting calls first."""
        self.shutdown(cancel_futures=kind is not None)
        return False
