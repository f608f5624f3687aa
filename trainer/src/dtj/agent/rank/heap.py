"""Makes the C library keep the memory that a rank frees."""

import ctypes
from collections.abc import Mapping

# From glibc's malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
# Bytes that may stay free at the end of the heap.
_KEPT = 1 << 30
# Larger blocks get their own mmap; this is glibc's maximum.
_LARGEST = 32 << 20
_SETTINGS_OF_THE_USER = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")


def keep_for_next_step(env: Mapping[str, str]) -> None:
    """Keep the memory that a training step frees, instead of returning it to the kernel until the next step.

    By default glibc returns what exceeds 64 MiB at most, and every page of it faults when it is used again.
    Does nothing if the user set glibc's own variables, or with another C library.
    """
    if any(name in env for name in _SETTINGS_OF_THE_USER):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt:
        mallopt(_M_TRIM_THRESHOLD, _KEPT)
        mallopt(_M_MMAP_THRESHOLD, _LARGEST)
