"""One forked rank as the agent sees it: a pid, three pipes, and what came out of them."""

import contextlib
import json
import os
import signal
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Self

from dtj import contract
from dtj.agent import rank as rank_process
from dtj.agent.lines import Lines
from dtj.agent.report import Ending

_CHUNK_BYTES = 64 * 1024


@dataclass(kw_only=True)
class Child:
    """A rank from its fork to its burial.

    streams  read end of a pipe -> (the agent's own fd that its lines go to, the lines)
    reports  read end of the pipe of watch/channel.py
    killed   the agent itself ended it
    """

    rank: int
    pid: int
    streams: dict[int, tuple[int, Lines]]
    reports: int
    killed: bool = False
    ending: Ending | None = None
    _step: int | None = None
    _failure: dict[str, Any] = field(default_factory=dict)
    _rest: bytes = b""

    @classmethod
    def fork(cls, program: rank_process.Program, *, env: dict[str, str], threads: int, as_json: bool) -> Self:
        """Start the program as the rank that `env` describes; only the parent returns."""
        rank = int(env[contract.RANK])
        pipes = [os.pipe() for _ in range(3)]
        (out, out_w), (err, err_w), (reports, reports_w) = pipes
        with rank_process.signals_blocked():
            pid = os.fork()
            if pid == 0:
                rank_process.become(
                    program, env, threads=threads, stdout=out_w, stderr=err_w, reports=reports_w
                )
        for read, write in pipes:
            os.close(write)
            os.set_blocking(read, False)
        streams = {fd: (target, Lines(rank=rank, as_json=as_json)) for fd, target in ((out, 1), (err, 2))}
        return cls(rank=rank, pid=pid, streams=streams, reports=reports)

    def is_for_people(self) -> bool:
        """Its failure is a message that stands by itself, not a traceback; it did not print it."""
        return bool(self._failure.get("isForPeople"))

    def read_lines(self, fd: int) -> tuple[bytes, bool]:
        """Whole lines that are there now, and whether the stream is over."""
        data = _read(fd)
        lines = self.streams[fd][1]
        if data is None:
            return b"", False
        return (lines.feed(data), False) if data else (lines.end(), True)

    def last_lines(self, fd: int) -> bytes:
        """All that the dead rank wrote; with a grandchild holding the pipe there need be no end of file."""
        found = b""
        while data := _read(fd):
            found += self.streams[fd][1].feed(data)
        return found + self.streams[fd][1].end()

    def read_reports(self) -> tuple[list[dict[str, Any]], bool]:
        """Reports that are there now, and whether the pipe is over."""
        data = _read(self.reports)
        *whole, self._rest = (self._rest + (data or b"")).split(b"\n")
        found = [json.loads(line) for line in whole]
        for fields in found:
            self._step = fields.get("step", self._step)
            self._failure = fields.get("failure", self._failure)
        return found, data == b""

    def signal(self, number: signal.Signals) -> None:
        """To the rank alone: what it started is its own business."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def kill(self) -> None:
        """The rank and all that it started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def bury(self, code: int) -> Ending:
        """It was reaped; `code` is negative where a signal ended it."""
        step = self._failure.get("step")
        self.ending = Ending(
            rank=self.rank,
            code=contract.EXIT_SIGNAL - code if code < 0 else code,
            signal=-code if code < 0 else None,
            at=datetime.fromisoformat(self._failure["at"]) if self._failure else datetime.now(UTC),
            step=step if step is not None else self._step,
            message=self._failure.get("message", ""),
            reason=self._failure.get("reason"),
            by_agent=self.killed,
        )
        return self.ending


def _read(fd: int) -> bytes | None:
    """Some bytes, b"" at the end of the stream, None where nothing is there now."""
    try:
        return os.read(fd, _CHUNK_BYTES)
    except BlockingIOError:
        return None
