"""Treats SIGTERM like Ctrl-C, so that a program cleans up after either of them."""

from __future__ import annotations

import signal

_WAKE_UP_S = 1.0


def clean_up_on_sigterm() -> None:
    """Make SIGTERM unwind the main thread and its event loop, instead of killing the process.

    Python handles a signal between two instructions. One that arrives just before a system call that waits,
    as an idle event loop's does, would wait as long. So a timer interrupts system calls.
    """
    # A shell starts background commands with SIGINT ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda _number, _frame: signal.raise_signal(signal.SIGINT))
    signal.signal(signal.SIGALRM, lambda _number, _frame: None)
    signal.setitimer(signal.ITIMER_REAL, _WAKE_UP_S, _WAKE_UP_S)
