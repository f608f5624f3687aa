"""A rank writes its Python stacks when the agent asks by a signal. No library uses these signals.

ASK     a thread answers. It holds the interpreter's lock, so no stack changes while it is read; but it cannot
        run while native code keeps that lock.
INSIST  faulthandler answers, whatever the process is doing. If a thread calls a function just then, it may
        read a frame that is not complete, and the process dies by SIGSEGV: CPython 3.11, 3.12 and 3.13 did
        so at one of 10 to 900 requests while C code called Python functions all the time. Only for a rank
        that has not answered ASK: it runs no Python code.
"""

import faulthandler
import json
import os
import signal
import sys
import threading
from contextlib import suppress
from itertools import islice
from traceback import walk_stack
from types import FrameType

if hasattr(signal, "SIGRTMIN"):
    ASK, INSIST = signal.SIGRTMIN + 6, signal.SIGRTMIN + 5
else:  # macOS
    ASK, INSIST = signal.SIGUSR2, signal.Signals(29)  # SIGINFO

# As many as faulthandler writes.
_MOST_THREADS, _MOST_FRAMES = 100, 100


def answer(fd: int) -> None:
    """Answer on this file descriptor from now on; it does not block."""
    faulthandler.register(INSIST, file=fd)
    # A thread inherits what is blocked: this one gets ASK only, and the program's threads all other signals.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    threading.Thread(target=_serve, args=(fd,), name="dtj-stacks", daemon=True).start()
    signal.pthread_sigmask(signal.SIG_SETMASK, before | {ASK})


def ignore() -> None:
    """What a rank inherits: a signal that comes before `answer` must not kill it."""
    for number in (ASK, INSIST):
        signal.signal(number, signal.SIG_IGN)


def _serve(fd: int) -> None:
    while True:
        signal.sigwait({ASK})
        with suppress(OSError):  # the pipe is full, or the agent is gone
            os.write(fd, f"{stacks_of_others()}\n{collectives()}".encode(errors="replace"))


def stacks_of_others() -> str:
    """As faulthandler writes them: all other threads, the main thread first; our idle one without frames."""
    frames = sys._current_frames()
    del frames[threading.get_ident()]
    main = threading.main_thread().ident
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    threads = sorted(frames, key=lambda thread: thread != main)[:_MOST_THREADS]
    return "\n".join(
        _stack("Main thread" if thread == main else "Thread", thread, frames[thread], names.get(thread, ""))
        for thread in threads
    )


def collectives() -> str:
    """A line for each process group of NCCL: what this rank has begun in it, and how much of that is done.

    On a GPU no frame says that a rank waits for others, see verdict.py.
    """
    distributed = sys.modules.get("torch._C._distributed_c10d")
    dump = getattr(distributed, "_dump_nccl_trace_json", None)  # torch without CUDA has none
    with suppress(Exception):  # torch's own name and format, which a version may change
        found = json.loads(dump(includeCollectives=False, onlyActive=True)) if dump else {}
        return "".join(
            f"NCCL group {found['pg_config'][number]['name']}: {counts['last_enqueued_collective']} begun,"
            f" {counts['last_completed_collective']} done\n"
            for number, counts in found.get("pg_status", {}).items()
        )
    return ""


def _stack(kind: str, thread: int, frame: FrameType, name: str) -> str:
    if name == "dtj-control-pipe":  # it always waits for the agent; others of ours may wait for a peer
        return f"{kind} 0x{thread:016x} [{name}]\n"
    calls = (
        f'  File "{called.f_code.co_filename}", line {line or 0} in {called.f_code.co_name}\n'
        for called, line in islice(walk_stack(frame), _MOST_FRAMES)
    )
    named = f" [{name}]" if kind == "Thread" and name else ""
    return f"{kind} 0x{thread:016x}{named} (most recent call first):\n{''.join(calls)}"
