"""Imported last by a process that others are forked from, so that forks are cheap and share its memory."""

import ctypes
import gc
from pathlib import Path

from dtj.agent.rank.preload import share_with_forks

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


share_with_forks()
gc.enable()
use_huge_pages()
