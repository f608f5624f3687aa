"""Turns signals into bytes in a pipe that the agent's loop reads; handlers do nothing."""

import contextlib
import os
import signal
from collections.abc import Collection


def hang_up() -> tuple[signal.Signals, ...]:
    """The signal of a terminal that is closed, or of a lost connection to it; not under nohup."""
    return () if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else (signal.SIGHUP,)


class SignalPipe:
    """Handles the given signals from its creation on; main thread only."""

    def __init__(self, numbers: Collection[signal.Signals]) -> None:
        self._numbers = frozenset(numbers)
        self._read, write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(write, False)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        for number in numbers:
            signal.signal(number, lambda *_: None)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)  # those that came before, see entry.py

    def fileno(self) -> int:
        """For a selector: readable once a signal has come."""
        return self._read

    def keep_for_next_program(self) -> None:
        """Block the signals, and send those that were not taken again: `exec` keeps them, but no handlers."""
        signal.pthread_sigmask(signal.SIG_BLOCK, self._numbers)
        with contextlib.suppress(BlockingIOError):
            for number in self.take():
                if number in self._numbers and number != signal.SIGCHLD:
                    os.kill(os.getpid(), number)

    def take(self) -> bytes:
        """Numbers of the signals since the last call."""
        return os.read(self._read, 4096)
