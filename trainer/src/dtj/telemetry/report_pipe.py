"""Rank -> agent: one JSON object a line through a pipe that the launcher opened before it forked the rank.

Without a launcher nothing listens and every call here is free.
"""

import json
import os
import select
from typing import Any

# Atomic as long as a line fits into PIPE_BUF.
MAX_BYTES = 4096

_pipe: int | None = None


def open_pipe(fd: int) -> None:
    """Called in the rank, right after the fork."""
    global _pipe  # noqa: PLW0603 - a process is one rank and has one pipe
    os.set_blocking(fd, False)
    _pipe = fd


def encode(report: dict[str, Any]) -> bytes:
    """As it goes through the pipe."""
    return json.dumps(report, ensure_ascii=False).encode(errors="replace")


def send(report: dict[str, Any], *, wait_s: float = 0.0) -> None:
    """Report some fields. A full pipe drops the report unless it is worth waiting for."""
    if _pipe is None:
        return
    line = encode(report) + b"\n"
    if len(line) > MAX_BYTES:
        raise ValueError(f"a report of {len(line)} bytes does not fit into {MAX_BYTES}")
    if wait_s:
        select.select([], [_pipe], [], wait_s)
    try:
        os.write(_pipe, line)
    except (BlockingIOError, BrokenPipeError):
        return
