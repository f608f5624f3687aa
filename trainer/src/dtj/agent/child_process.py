"""Forks processes that die with the agent and do not inherit its signal handlers."""

import contextlib
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise

from dtj.agent.signals import hang_up
from dtj.ranks.parent_death import die_with

_BLOCKED_IN_FORK = (signal.SIGTERM, signal.SIGINT)


def fork_helper(run: Callable[[], None], *, keep: Iterable[int] = ()) -> int:
    """Fork a helper that runs `run`; return its pid. It ignores Ctrl-C: the agent stops it.

    keep  file descriptors that it needs; it closes all others but its standard streams, so that connections
          and pipes of the agent end with the agent
    """
    agent = os.getpid()
    with signals_blocked():
        pid = os.fork()
        if pid == 0:
            try:
                detach(agent)
                _close_all_but(keep)
                sys.stderr = open(2, "w", buffering=1, closefd=False, errors="replace")  # noqa: SIM115
                signal.signal(signal.SIGINT, signal.SIG_IGN)
                run()
            except BaseException:  # noqa: BLE001 - the child must never return into the agent
                traceback.print_exc()
            finally:
                os._exit(0)
    return pid


def end_helper(pid: int) -> None:
    """Kill a helper and reap it, if it is still there."""
    with contextlib.suppress(ProcessLookupError, ChildProcessError):
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def detach(agent: int) -> None:
    """Called in the child: own process group, default signal handlers, dies with the agent (a pid)."""
    os.setpgid(0, 0)  # so that what it starts (data workers of a rank) can be killed with it
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGTERM, signal.SIGCHLD, *hang_up()):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _BLOCKED_IN_FORK)
    die_with(agent)


def _close_all_but(keep: Iterable[int]) -> None:
    most = os.sysconf("SC_OPEN_MAX")
    for below, above in pairwise(sorted({0, 1, 2, *keep, most})):
        os.closerange(below + 1, above)


@contextlib.contextmanager
def signals_blocked() -> Iterator[None]:
    """Use around a fork, so that no signal is lost before the child has its own handlers."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _BLOCKED_IN_FORK)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _BLOCKED_IN_FORK)
