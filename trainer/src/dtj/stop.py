"""SIGTERM or SIGINT -> a flag, and nothing else.

A handler runs between any two bytecodes, so a collective or a save in it would deadlock or tear. The flag
travels with the next message of agreement.py; all ranks then stop at the same step.
"""

import signal
from types import FrameType


class StopFlag:
    """True once a stop was asked for; a second SIGINT interrupts at once, for people in a hurry."""

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None

    def __bool__(self) -> bool:
        return self.signal is not None

    def install(self) -> None:
        """Take over SIGTERM and SIGINT; only the main thread may call this."""
        signal.signal(signal.SIGTERM, self._handle)
        signal.signal(signal.SIGINT, self._handle)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if self.signal is signal.SIGINT and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal = signal.Signals(number)
