"""Pipe from a rank to its agent: one JSON object per line. The agent opens it before it forks the rank.

Without an agent every call here does nothing.
"""

import json
import os
import select
from typing import Any

# PIPE_BUF of Linux: a write of up to this size is atomic.
MAX_BYTES = 4096

_pipe: int | None = None


def open_pipe(fd: int) -> None:
    """Called in the rank, right after the fork."""
    global _pipe  # noqa: PLW0603 - a process is one rank and has one pipe
    os.set_blocking(fd, False)
    _pipe = fd


def encode(report: dict[str, Any]) -> bytes:
    """The report as bytes, without the line end."""
    return json.dumps(report, ensure_ascii=False).encode(errors="replace")


def send(report: dict[str, Any], *, wait_s: float = 0.0) -> None:
    """Send a report. If the pipe is full, wait up to wait_s seconds, then drop the report."""
    if _pipe is None:
        return
    line = encode(report) + b"\n"
    if len(line) > MAX_BYTES:
        raise ValueError(f"a report of {len(line)} bytes does not fit into {MAX_BYTES}")
    if wait_s:
        poll = select.poll()  # unlike select(), for any number of open files
        poll.register(_pipe, select.POLLOUT)
        poll.poll(1000 * wait_s)
    try:
        os.write(_pipe, line)
    except (BlockingIOError, BrokenPipeError):
        return
