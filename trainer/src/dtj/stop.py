"""Signal handler for SIGTERM and SIGINT that only sets a flag.

A handler runs between any two bytecodes, so a collective in it could deadlock, and a save could be torn. The
flag is sent with the next message of agreement.py; all ranks then stop after the same step.
"""

import signal
from types import FrameType


class StopFlag:
    """True after a stop signal; a second SIGINT raises KeyboardInterrupt immediately."""

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None

    def __bool__(self) -> bool:
        return self.signal is not None

    def install(self) -> None:
        """Install the handler; only the main thread may call this."""
        signal.signal(signal.SIGTERM, self._handle)
        signal.signal(signal.SIGINT, self._handle)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if self.signal is signal.SIGINT and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal = signal.Signals(number)
