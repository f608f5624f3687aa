"""How the C library keeps the memory that a rank has freed."""

import ctypes
from collections.abc import Mapping

# Of glibc's malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
# What may lie free at the end of the heap, bytes.
_KEPT = 1 << 30
# Larger blocks are the kernel's own each; glibc takes no more than this.
_LARGEST = 32 << 20
_SETTINGS_OF_THE_USER = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")


def keep_for_next_step(env: Mapping[str, str]) -> None:
    """Do not give what a training step frees back to the kernel, only to ask for it again in the next one.

    glibc gives back what exceeds 64 MiB at most, and every page of it faults when it is used anew. Nothing
    happens where the user set glibc's own variables, or with another C library.
    """
    if any(name in env for name in _SETTINGS_OF_THE_USER):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt:
        mallopt(_M_TRIM_THRESHOLD, _KEPT)
        mallopt(_M_MMAP_THRESHOLD, _LARGEST)
