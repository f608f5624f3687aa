"""Preparation that every node needs once: download, unpack, index."""

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from dtj.telemetry import heartbeat


@contextlib.contextmanager
def first_on_node() -> Iterator[None]:
    """Let one process of this machine at a time do what is inside.

    The first to come prepares; the others wait, come one by one, and find it done, so what is inside begins
    with a look whether it is. Where the first dies, the next one takes over. A lock, not a collective: it
    works before `init`, never times out, and waiting is not taken for a hang. It holds among processes that
    share a temporary folder: those of one pod.
    """
    path = Path(tempfile.gettempdir()) / f"dtj-{os.getuid()}.lock"
    with path.open("w") as lock, heartbeat.mine.paused():
        fcntl.flock(lock, fcntl.LOCK_EX)  # ends with the process, however that ends
        try:
            yield
        finally:
            fcntl.flock(lock, fcntl.LOCK_UN)  # closing is not enough where a forked child has the file too
