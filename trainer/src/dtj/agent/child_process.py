"""Forks processes that die with the agent and do not inherit its signal handlers."""

import contextlib
import os
import signal
import traceback
from collections.abc import Callable, Iterator

from dtj.parent_death import die_with

_BLOCKED_IN_FORK = (signal.SIGTERM, signal.SIGINT)


def fork_helper(run: Callable[[], None]) -> int:
    """Fork a helper that runs `run`; return its pid. It ignores Ctrl-C: the agent stops it."""
    agent = os.getpid()
    with signals_blocked():
        pid = os.fork()
        if pid == 0:
            try:
                detach(agent)
                signal.signal(signal.SIGINT, signal.SIG_IGN)
                run()
            except BaseException:  # noqa: BLE001 - the child must never return into the agent
                traceback.print_exc()
            finally:
                os._exit(0)
    return pid


def detach(agent: int) -> None:
    """Called in the child: own process group, default signal handlers, dies with the agent (a pid)."""
    os.setpgid(0, 0)  # so that what it starts (data workers of a rank) can be killed with it
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _BLOCKED_IN_FORK)
    die_with(agent)


@contextlib.contextmanager
def signals_blocked() -> Iterator[None]:
    """Use around a fork, so that no signal is lost before the child has its own handlers."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _BLOCKED_IN_FORK)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _BLOCKED_IN_FORK)
