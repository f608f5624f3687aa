"""Preparation to do once per node: download, unpack, index."""

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from dtj.telemetry import heartbeat


@contextlib.contextmanager
def first_on_node(*, at_most_s: float = heartbeat.PAUSE_S) -> Iterator[None]:
    """Context that only one process of this machine is in at a time.

    The first process prepares; the others enter after it, one by one, so the code inside must start with a
    check whether the work is done. If the first process dies, the next one takes over. This is a lock, not a
    collective: it works before `init` and has no timeout. It covers the processes that share a temporary
    folder: those of one pod.

    at_most_s  seconds until all are through; after that, a process that does nothing is treated as hung
    """
    path = Path(tempfile.gettempdir()) / f"dtj-{os.getuid()}.lock"
    # Other users may write to that folder: a link of theirs is not followed.
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(fd) as lock, heartbeat.mine.paused(at_most_s):
        fcntl.flock(lock, fcntl.LOCK_EX)  # the kernel releases it when the process ends
        try:
            yield
        finally:
            fcntl.flock(lock, fcntl.LOCK_UN)  # closing is not enough if a forked child has the file open, too
