"""SIGTERM as Ctrl-C: what a program has started and written is cleaned up, however it is told to end."""

from __future__ import annotations

import signal


def clean_up_on_sigterm() -> None:
    """Have SIGTERM unwind the main thread, event loop included, instead of ending the process at once."""
    # What a shell puts into the background is started with Ctrl-C ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda _number, _frame: signal.raise_signal(signal.SIGINT))
