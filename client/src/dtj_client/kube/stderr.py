"""What kubectl writes to its standard error: kept for an error in our words, and shown if kubectl waits.

A program that logs the user in, such as one of a cloud, says there which page to open, and waits for it.
"""

import contextlib
import os
import select
import sys
import threading
import time
from collections.abc import Iterator

SHOWN_AFTER_S = 3.0
_POLL_S = 0.2
_REST_S = 5.0  # for what it had written when it ended
_BLOCK = 1 << 16


class Heard:
    """Reads a pipe in a thread; `text` is complete after `heard`."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        self.text, self._shown, self._begun = b"", 0, time.monotonic()
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def fileno(self) -> int:
        """Where the process writes to."""
        return self._write

    def show(self) -> None:
        """Print what was not printed yet."""
        sys.stderr.write(self.text[self._shown :].decode(errors="replace"))
        sys.stderr.flush()
        self._shown = len(self.text)

    def end(self) -> None:
        """Wait until the process has written everything; what it leaves running may keep the pipe open."""
        os.close(self._write)
        self._thread.join(_REST_S)
        if not self._thread.is_alive():
            os.close(self._read)

    def _listen(self) -> None:
        ready = select.poll()  # select() takes no file descriptor above 1023
        ready.register(self._read, select.POLLIN)
        while True:
            if ready.poll(_POLL_S * 1000):
                block = os.read(self._read, _BLOCK)
                if not block:
                    return
                self.text += block
            if len(self.text) > self._shown and time.monotonic() > self._begun + SHOWN_AFTER_S:
                self.show()


@contextlib.contextmanager
def heard() -> Iterator[Heard]:
    """Listen to a process until the block ends."""
    said = Heard()
    try:
        yield said
    finally:
        said.end()
