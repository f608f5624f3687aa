"""Has this process initialized CUDA? Then processes that it forks cannot use a GPU.

The agent imports libraries once for all ranks that it forks, and some initialize CUDA when they are imported.
"""

import ctypes
import os
import sys
from collections.abc import Callable
from pathlib import Path

from dtj import contract

_MAPS = Path("/proc/self/maps")
_NOT_INITIALIZED = 3  # CUDA_ERROR_NOT_INITIALIZED: the answer of every call before cuInit


def is_initialized() -> bool:
    """Whether a library has called cuInit; does not load the driver's library and does not call it itself."""
    if not _MAPS.exists() or "libcuda.so" not in _MAPS.read_text():
        return False
    count = ctypes.c_int()
    return bool(ctypes.CDLL("libcuda.so.1").cuDeviceGetCount(ctypes.byref(count)) != _NOT_INITIALIZED)


def start_again_if_initialized(log: Callable[[str], None], *, keep_signals: Callable[[], None]) -> None:
    """Replace this process by an agent that preloads nothing, so that each rank imports for itself."""
    if not is_initialized():
        return
    if os.environ.get(contract.PRELOAD) == "0":
        log("CUDA is initialized in the agent although it preloads nothing: ranks cannot use a GPU")
        return
    log(
        f"a library initialized CUDA when it was imported: starting again with {contract.PRELOAD}=0,"
        " so that each rank imports for itself"
    )
    os.environ[contract.PRELOAD] = "0"
    keep_signals()
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
