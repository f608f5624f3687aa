"""Signal handler for SIGTERM and SIGINT that only sets a flag.

A handler runs between any two bytecodes, so a collective in it could deadlock, and a save could be torn. The
flag is sent with the next message of agreement.py; all ranks then stop after the same step.
"""

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import NoReturn

from dtj.errors import Stopped

# The exit code of a stop that was raised in the program; None again if that completes its steps after all.
left: int | None = None


def leave(code: int) -> NoReturn:
    """Raise Stopped; a program that catches it, and ends with code 0, is not done."""
    global left  # noqa: PLW0603 - a process is one rank
    left = code
    raise Stopped(code)


class StopFlag:
    """True after a stop signal; a second SIGINT raises KeyboardInterrupt immediately."""

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None

    def __bool__(self) -> bool:
        return self.signal is not None

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Context with the handler installed, in training. Outside, a signal ends the process as usual."""
        if threading.current_thread() is not threading.main_thread():  # which alone may install one
            yield
            return
        before = {number: signal.signal(number, self._handle) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler or signal.SIG_DFL)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if self.signal is signal.SIGINT and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal = signal.Signals(number)
