"""The end of a process that has torch imported, an agent or a rank.

The interpreter would take apart all that was imported, object by object: 1.2 s of processor time. The kernel
frees the memory at once.
"""

import atexit
import contextlib
import ctypes
import gc
import os
import sys
import threading
import traceback
import typing
import weakref
from _io import _IOBase  # what io.IOBase and all files in C are made of
from types import ModuleType
from typing import Any, NoReturn


def end(code: int) -> NoReturn:
    """Run the exit functions, whatever they raise, and end this process."""
    try:
        run_exit_functions()
    except BaseException:  # noqa: BLE001 - the exit code is decided
        traceback.print_exc()
    finally:
        end_now(code)


def end_now(code: int) -> NoReturn:
    """End this process without its exit functions, once what it wrote is in its files."""
    try:
        with contextlib.suppress(Exception):
            _write_files()
    finally:  # also after Ctrl-C
        os._exit(code)


def run_exit_functions() -> None:
    """What the interpreter does at exit: wait for threads, run exit functions (loggers, groups)."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit.unregister(gc.unfreeze)  # what was imported before the fork holds no file, and is shared memory
    # triton's exit function empties these caches, which costs 4 ms and copies 5 MB of that memory.
    getattr(typing, "_cleanups", []).clear()
    leave_operators()
    atexit._run_exitfuncs()


def let_go(program: ModuleType) -> None:
    """Drop what a program holds; called after its exit functions.

    First an exception that it did not catch, then its global variables, the newest first. Some libraries
    complete a file only when its object goes: zip archives, HDF5, Parquet, videos.
    """
    threading.excepthook = lambda _: None  # of a thread that is left and misses a variable
    vars(sys).update(last_exc=None, last_type=None, last_value=None, last_traceback=None)
    names = vars(program)
    for name in reversed([each for each in names if not each.startswith("__")]):
        names.pop(name, None)
    gc.collect()


def _write_files() -> None:
    """Write what open files still hold in memory: the interpreter would close them as it takes them apart."""
    streams: list[Any] = [sys.stdout, sys.stderr]
    # Not issubclass: an abstract class remembers its answer for each class, in memory that ranks share with
    # the agent, and a write copies a page, 400 of them.
    found = [each for each in gc.get_objects() if _IOBase in type(each).__mro__] + streams
    # A compressed file, for example, writes its end when it is closed, to a file that is among these, too.
    wrappers = [each for each in found if type(each).__module__ not in {"_io", "io"} and each not in streams]
    for act in [
        *(each.flush for each in found),
        *(each.close for each in wrappers),
        *(each.flush for each in found),
    ]:
        with contextlib.suppress(Exception):  # the program may have closed it
            act()
    ctypes.CDLL(None).fflush(None)


def leave_operators() -> None:
    """Let torch's libraries of operators end with the process.

    They unregister thousands of kernels one by one, which costs 35 ms of CPU time and copies 35 MB that the
    rank shares with the agent. Called before the fork, too: else each rank looks through the finalizers of
    200 libraries and copies 600 pages.
    """
    for finalizer in list(weakref.finalize._registry):  # type: ignore[attr-defined]
        if (alive := finalizer.peek()) and alive[1].__module__ == "torch.library":
            finalizer.detach()
