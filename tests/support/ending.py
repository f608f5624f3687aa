"""Treats SIGTERM like Ctrl-C, so that a program cleans up after either of them."""

from __future__ import annotations

import signal


def clean_up_on_sigterm() -> None:
    """Make SIGTERM unwind the main thread and its event loop, instead of killing the process."""
    # A shell starts background commands with SIGINT ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda _number, _frame: signal.raise_signal(signal.SIGINT))
