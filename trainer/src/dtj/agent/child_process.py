"""Processes that the agent forks: each ends with it, and none inherits what it does about signals."""

import contextlib
import os
import signal
import traceback
from collections.abc import Callable, Iterator

from dtj.parent_death import die_with

_BLOCKED_IN_FORK = (signal.SIGTERM, signal.SIGINT)


def fork_helper(run: Callable[[], None]) -> int:
    """Its pid; only the agent returns. Ctrl-C on a terminal is not for it: the agent ends it."""
    agent = os.getpid()
    with signals_blocked():
        pid = os.fork()
        if pid == 0:
            try:
                detach(agent)
                signal.signal(signal.SIGINT, signal.SIG_IGN)
                run()
            except BaseException:  # noqa: BLE001 - whatever happens, the child must not return into the agent
                traceback.print_exc()
            finally:
                os._exit(0)
    return pid


def detach(agent: int) -> None:
    """A fresh process that dies with the agent, whose pid this is: own group, no inherited handlers."""
    os.setpgid(0, 0)  # what it starts (data workers of a rank) can be killed with it
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _BLOCKED_IN_FORK)
    die_with(agent)


@contextlib.contextmanager
def signals_blocked() -> Iterator[None]:
    """Around a fork: a signal between it and the child's own handlers waits instead of being lost."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _BLOCKED_IN_FORK)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _BLOCKED_IN_FORK)
