"""Pipe from the agent to a rank: which generation to join next. One JSON object per line.

A thread reads the pipe, because the rank's main thread may be blocked in a collective with a dead peer. When
the next generation is announced, the thread makes that collective fail (`on_change`). If the thread fails,
the rank ends: it would hear of no generation any more, and the other ranks would wait for it.
"""

import json
import os
import threading
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from dtj import contract

# How often a waiting rank checks whether to give up.
_CHECK_S = 0.5


@dataclass(frozen=True, kw_only=True)
class Generation:
    """Address of the next rendezvous, and how many seconds the ranks have to connect to each other."""

    number: int
    addr: str
    port: int
    connect_s: float


class ControlPipe:
    """What the agent has announced so far."""

    def __init__(self, fd: int, first: Generation, *, on_change: Callable[[], None]) -> None:
        self._newest = first
        self._complete = 0
        self._news = threading.Condition()
        self._on_change = on_change
        self._pipe = os.fdopen(fd)
        threading.Thread(target=self._read_or_end, name="dtj-control-pipe", daemon=True).start()

    @property
    def newest(self) -> Generation:
        """The newest generation: this rank has to join it."""
        return self._newest

    def wait_newer(self, than: int, *, give_up: Callable[[], None]) -> None:
        """Block until a generation after `than` is announced; `give_up` is called regularly and may raise."""
        self._wait(lambda: self._newest.number > than, give_up)

    def has_newer(self, than: int, *, within_s: float) -> bool:
        """A generation after `than` is announced within this time."""
        with self._news:
            return self._news.wait_for(lambda: self._newest.number > than, timeout=within_s)

    def wait_complete(self, number: int, *, give_up: Callable[[], None]) -> bool:
        """Block until all ranks of the generation are ready; False if a newer generation has replaced it."""
        self._wait(lambda: self._complete >= number or self._newest.number > number, give_up)
        return self._newest.number == number

    def _wait(self, condition: Callable[[], bool], give_up: Callable[[], None]) -> None:
        with self._news:
            while not self._news.wait_for(condition, timeout=_CHECK_S):
                give_up()

    def _read_or_end(self) -> None:
        try:
            self._read()
        except Exception:  # noqa: BLE001 - whatever it is, the main thread may be out of reach
            traceback.print_exc()
            os._exit(1)

    def _read(self) -> None:
        for line in self._pipe:
            message = json.loads(line)
            with self._news:
                if "go" in message:
                    self._complete = message["go"]
                else:
                    self._newest = Generation(**message)
                self._news.notify_all()
            if "go" not in message:
                self._on_change()


_pipe: int | None = None


def open_pipe(fd: int) -> None:
    """Called in the rank, right after the fork."""
    global _pipe  # noqa: PLW0603 - a process is one rank and has one agent
    _pipe = fd


def listen(environ: Mapping[str, str], *, on_change: Callable[[], None]) -> ControlPipe | None:
    """Start reading; None if there is no agent, or if this was called before."""
    global _pipe
    if _pipe is None:
        return None
    fd, _pipe = _pipe, None
    first = Generation(
        number=int(environ[contract.GENERATION]),
        addr=environ[contract.MASTER_ADDR],
        port=int(environ[contract.MASTER_PORT]),
        connect_s=float(environ[contract.CONNECT_SECONDS]),
    )
    return ControlPipe(fd, first, on_change=on_change)
