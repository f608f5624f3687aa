"""What storage was asked for and has not answered: named in the log, since every rank may wait for it.

A network volume may never answer, and the library of a store tries for minutes before it raises an error.
"""

import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Iterator

# Who has not answered for so long is named.
SILENT_S = 20.0
_numbers = itertools.count()
_pending: dict[int, tuple[float, str]] = {}  # when it was asked for, and what


@contextlib.contextmanager
def awaited(what: object) -> Iterator[None]:
    """Within the block, `what` has not answered yet; a path or URL."""
    number = next(_numbers)
    _pending[number] = (time.monotonic(), str(what))
    try:
        yield
    finally:
        del _pending[number]


@contextlib.contextmanager
def watched(say: Callable[[str], None]) -> Iterator[None]:
    """Within the block, for which all ranks wait, print a line if something is not answered for long."""
    ended = threading.Event()
    threading.Thread(target=_watch, args=(ended, say), name="storage", daemon=True).start()
    try:
        yield
    finally:
        ended.set()


def _watch(ended: threading.Event, say: Callable[[str], None]) -> None:
    left = 0.0
    while not ended.wait(left):
        now = time.monotonic()
        since, what = min(list(_pending.values()), default=(now, ""))
        left = SILENT_S - (now - since)
        if left <= 0:
            say(f"{what} has not answered for {SILENT_S:.0f} s: every rank waits for it")
            return
