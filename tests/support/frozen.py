"""Imported last by a process that others are forked from, so that forks are cheap and share its memory."""

import atexit
import ctypes
import gc
import os
import sys
from pathlib import Path

from dtj.agent.rank.preload import find_libuv, register_gloo, share_with_forks

MADV_COLLAPSE = 25  # Linux 6.1
HUGE_PAGE = 2 << 20  # bytes


def use_huge_pages() -> None:
    """Move this process's own memory into huge pages: a fork then copies one entry where it copied 512.

    torch and what it imports hold 110,000 pages, which a fork and its end pass over in 37 ms of CPU time, and
    in 12 ms as huge pages. A kernel that refuses leaves the pages as they are.
    """
    libc = ctypes.CDLL(None)
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, permissions, _, _, _, *name = line.split(maxsplit=5)
        if "w" in permissions and name in ([], ["[heap]"]):
            first, end = (int(address, base=16) for address in span.split("-"))
            first = -(-first // HUGE_PAGE) * HUGE_PAGE
            length = end // HUGE_PAGE * HUGE_PAGE - first
            if length > 0:
                libc.madvise(ctypes.c_void_p(first), ctypes.c_size_t(length), MADV_COLLAPSE)


def end_at_once(server: int) -> None:
    """End the server, and not what it has forked, without taking apart its modules: 1.6 s of CPU time."""
    if os.getpid() == server:
        os._exit(0)


if "torch.distributed" in sys.modules:
    find_libuv()
    register_gloo()
share_with_forks()
atexit.register(end_at_once, os.getpid())
gc.enable()
use_huge_pages()
