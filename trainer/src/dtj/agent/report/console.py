"""Prints the lines of the ranks; on a terminal with a progress bar below them."""

import contextlib
import os
import select
import sys
from typing import Any, Protocol


class Console(Protocol):
    """What the agent writes to. A live console is given the progress a few times a second."""

    is_live: bool

    def write(self, fd: int, data: bytes) -> None: ...
    def progress(self, document: dict[str, Any]) -> None: ...
    def close(self) -> None: ...


def _write_all(fd: int, data: bytes) -> None:
    """Write all bytes, or lose them if the disk is full or the terminal is gone: training matters more.

    BrokenPipeError if the reader is gone, which ends the run as it ends any program.
    """
    while data:
        try:
            data = data[os.write(fd, data) :]
        except BlockingIOError:  # another program has made the terminal or the pipe that they share so
            poll = select.poll()
            poll.register(fd, select.POLLOUT)
            poll.poll()
        except BrokenPipeError:
            raise
        except OSError:
            return


class PlainConsole:
    """Writes bytes to the agent's own stdout and stderr."""

    is_live = False

    def write(self, fd: int, data: bytes) -> None:
        _write_all(fd, data)

    def progress(self, document: dict[str, Any]) -> None:
        """A log has no progress bar."""

    def close(self) -> None:
        """Nothing to restore."""


class TerminalConsole:
    """Lines above, one bar below; redrawn only after a change, without a thread."""

    is_live = True

    def __init__(self) -> None:
        import rich.console  # noqa: PLC0415 - slow, and only needed on a terminal
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn  # noqa: PLC0415

        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed:.0f}/{task.total:.0f}"),
            TextColumn("{task.fields[note]}"),
            TimeRemainingColumn(compact=True),
            console=rich.console.Console(stderr=True),
            auto_refresh=False,
            transient=True,
        )
        self._task: Any = None

    def write(self, fd: int, data: bytes) -> None:
        text = data.decode(errors="replace").removesuffix("\n")
        with contextlib.suppress(OSError):  # the terminal is gone
            self._bar.console.print(text, markup=False, emoji=False, highlight=False, soft_wrap=True)

    def progress(self, document: dict[str, Any]) -> None:
        if not document["totalSteps"]:
            return
        with contextlib.suppress(OSError):
            if self._task is None:
                self._bar.start()
                self._task = self._bar.add_task("training", total=document["totalSteps"], note="")
            note = f"loss {document['loss']:.4f}" if document["loss"] is not None else ""
            self._bar.update(self._task, completed=document["step"] or 0, note=note, refresh=True)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._bar.stop()


def choose_console(*, as_json: bool, in_job: bool) -> Console:
    """A bar only if both streams are terminals, which the agents of a job on one machine share."""
    has_terminal = sys.stdout.isatty() and sys.stderr.isatty()
    return TerminalConsole() if has_terminal and not as_json and not in_job else PlainConsole()
