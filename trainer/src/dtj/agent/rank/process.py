"""One forked rank as the agent sees it: a pid, pipes, and what was read from them."""

import contextlib
import fcntl
import json
import os
import re
import signal
import sys
import termios
import time
from collections import deque
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Self

from dtj import contract
from dtj.agent.child_process import signals_blocked
from dtj.agent.rank import own_stacks, process_group
from dtj.agent.rank.error_file import ErrorFile
from dtj.agent.rank.last_words import KEPT, last_words
from dtj.agent.rank.log_lines import LogLines
from dtj.agent.rank.main import Program, Wiring, become
from dtj.agent.rank.process_usage import handles
from dtj.agent.wire.outcome import Ending
from dtj.agent.wire.protocol import RankState
from dtj.telemetry.heartbeat import SharedHeartbeat

_CHUNK_BYTES = 64 * 1024
_STACKS_BYTES = 1024 * 1024  # 100 threads, 20 functions deep, write a tenth of this
# Lightning, transformers and many scripts save and exit with 0 then, in the middle of training. Only a
# program that uses dtj tells an agreed stop from its end.
_LEFT_ON_REQUEST = (
    "the program exited with code 0 after SIGTERM, so it may not have finished: this counts as stopped, not "
    "as done (exit code 143)"
)

# A killed process ends once the kernel has freed its memory, which may be a terabyte. It does not end while
# the kernel waits for a file system, or a driver, that does not answer.
_STUCK_S = 120.0

# A thread of NCCL prints this and aborts the process, past all of its code, if a peer is gone: not a culprit.
_WATCHDOG = re.compile(
    rb"watchdog thread terminated with exception: .*(remote process exited|before timing out).*"
)
# What C++ prints of an exception that nothing caught, before it aborts: gloo's of a rank that sent more than
# this one expected, since they called other collectives.
_UNCAUGHT = re.compile(rb"  what\(\):  (.+?)(?:\"})?$", re.MULTILINE)  # also in a line of JSON


@dataclass
class Leaving:
    """A rank was asked to exit, and is killed if it does not. Times are of time.monotonic().

    latest   if it works, it gets more time up to here; 0: it gets none
    every_s  seconds that it gets then
    signs    of life when it was asked, or when it last got more time
    """

    kill_at: float
    latest: float = 0.0
    every_s: float = 0.0
    signs: int = 0


@dataclass(kw_only=True)
class RankProcess:
    """A rank from its fork to its end.

    streams    read end of an open output pipe -> (the agent's own fd for its lines, the lines)
    recent     the last lines that it wrote to them
    reports    read end of the pipe of telemetry/report_pipe.py, None once it is closed
    orders     write end of the pipe of control_pipe.py
    stacks     read end of the pipe for its Python stacks
    heartbeat  its progress, in shared memory
    error_file where torch's `@record` writes
    killed     the agent killed it
    killed_at  by SIGKILL, by time.monotonic()
    leaving    None if it was not asked to exit, or was killed
    must_stop  its pod was asked to terminate
    uses_dtj   its program uses dtj: if asked to stop, it saves first
    holds      it has the run in memory and can join the next generation without a restart
    ready_in   the last generation for which it reported to be ready
    lost_in    the last generation in which it lost its peers, or did not reach them (is_unformed), and waits
    stacks_requested_at  by time.monotonic()
    stacks_requests  number of requests for its stacks so far
    stacks_insisted  how often it was interrupted for them
    """

    rank: int
    pid: int
    streams: dict[int, tuple[int, LogLines]]
    reports: int | None
    orders: int
    stacks: int
    heartbeat: SharedHeartbeat
    generation: int
    killed: bool = False
    killed_at: float | None = None
    leaving: Leaving | None = None
    must_stop: bool = False
    uses_dtj: bool = False
    holds: bool = False
    ready_in: int = 0
    lost_in: int = 0
    lost: Ending | None = None
    is_unformed: bool = False
    stacks_requested_at: float = 0.0
    stacks_requests: int = 0
    stacks_insisted: int = 0
    ending: Ending | None = None
    error_file: ErrorFile = field(default_factory=ErrorFile)
    recent: deque[bytes] = field(default_factory=deque)
    _failure: dict[str, Any] = field(default_factory=dict)
    _rest: bytes = b""
    _stacks_read: int = 0  # bytes
    _nccl_lost: str = ""  # what NCCL's watchdog said of lost peers
    _uncaught: str = ""  # the exception of C++ that nothing caught

    @classmethod
    def fork(
        cls,
        program: Program,
        *,
        env: dict[str, str],
        generation: int,
        threads: int,
        as_json: bool,
        slots: tuple[int, ...],
        inherited: list[int],
    ) -> Self:
        """Start the program as the rank that `env` describes; only the parent returns.

        slots      shared memory for copies of its state, which outlives it
        inherited  file descriptors of the agent that the rank must close
        """
        rank = int(env[contract.RANK])
        pipes = [os.pipe() for _ in range(5)]
        (out, out_w), (err, err_w), (reports, reports_w), (orders, orders_w), (stacks, stacks_w) = pipes
        with contextlib.suppress(OSError, AttributeError):  # not Linux, or too many large pipes on this node
            fcntl.fcntl(stacks_w, fcntl.F_SETPIPE_SZ, _STACKS_BYTES)
        os.set_blocking(stacks_w, False)  # a rank must not wait for a reader of its stacks
        heartbeat, error_file = SharedHeartbeat(), ErrorFile()
        if error_file.path:
            env = env | {contract.ERROR_FILE: error_file.path}
        agent = os.getpid()
        with signals_blocked():
            pid = os.fork()
            if pid == 0:
                wiring = Wiring(
                    agent=agent,
                    stdout=out_w,
                    stderr=err_w,
                    reports=reports_w,
                    orders=orders,
                    stacks=stacks_w,
                    heartbeat=heartbeat,
                    slots=slots,
                    foreign=[*inherited, out, err, reports, orders_w, stacks],
                )
                become(program, env, threads=threads, wiring=wiring)
        with contextlib.suppress(ProcessLookupError):
            os.setpgid(pid, pid)  # the child does so too, but a kill may come before that
        for fd in (out_w, err_w, reports_w, orders, stacks_w):
            os.close(fd)
        for fd in (out, err, reports, orders_w, stacks):
            os.set_blocking(fd, False)
        recent = deque[bytes](maxlen=KEPT)
        streams = {
            fd: (target, LogLines(rank=rank, as_json=as_json, recent=recent))
            for fd, target in ((out, 1), (err, 2))
        }
        return cls(
            recent=recent,
            rank=rank,
            pid=pid,
            streams=streams,
            reports=reports,
            orders=orders_w,
            stacks=stacks,
            heartbeat=heartbeat,
            error_file=error_file,
            generation=generation,
        )

    def order(self, order: dict[str, Any]) -> None:
        """Send an order to the rank; if it is dead or stuck, that shows otherwise."""
        with contextlib.suppress(BlockingIOError, BrokenPipeError):
            os.write(self.orders, json.dumps(order).encode() + b"\n")

    def is_for_people(self) -> bool:
        """Its failure is a message for the user that it did not print, not a traceback."""
        return bool(self._failure.get("isForPeople"))

    def read_lines(self, fd: int) -> tuple[bytes, bool]:
        """Whole lines available now, and whether the stream has ended."""
        data = _read(fd)
        if data is None:
            return b"", False
        return (self._feed(fd, data), False) if data else (self.streams[fd][1].end(), True)

    def last_lines(self, fd: int) -> bytes:
        """All that the dead rank wrote: what the pipe holds now. A process that it left may write on."""
        found, left = b"", _unread(fd)
        while left > 0 and (data := _read(fd)):
            left -= len(data)
            found += self._feed(fd, data)
        return found + self.streams[fd][1].end()

    def _feed(self, fd: int, data: bytes) -> bytes:
        target, lines = self.streams[fd]
        text = lines.feed(data)
        if target == 2 and (found := _WATCHDOG.search(text)):
            self._nccl_lost = f"lost a peer: NCCL's {found.group().decode(errors='replace')}"
        if target == 2 and (found := _UNCAUGHT.search(text)):
            self._uncaught = found[1].decode(errors="replace")
        return text

    def read_reports(self) -> tuple[list[dict[str, Any]], bool]:
        """Reports available now, and whether the pipe has ended."""
        data = b"" if self.reports is None else _read(self.reports)
        *whole, self._rest = (self._rest + (data or b"")).split(b"\n")
        found = [json.loads(line) for line in whole]
        for fields in found:
            self._failure = fields.get("failure", self._failure)
        return found, data == b""

    def signal(self, number: signal.Signals, *, on_behalf_of_agent: bool = False) -> None:
        """Send a signal to the rank alone, not to the processes that it started."""
        self.killed = self.killed or on_behalf_of_agent
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def works(self) -> bool:
        """Whether it, which is leaving, is in a save, or has shown signs of life since the last call."""
        assert self.leaving
        before, self.leaving.signs = self.leaving.signs, self.heartbeat.signs
        return self.uses_dtj and (self.heartbeat.is_paused or self.heartbeat.signs != before)

    def kill(self) -> None:
        """Kill the rank and all that it started."""
        self.killed, self.leaving = True, None
        self.kill_group()

    def kill_group(self) -> None:
        """Kill what is left of its process group."""
        self.killed_at = self.killed_at or time.monotonic()
        process_group.kill(self.pid)

    @property
    def stuck_at(self) -> float | None:
        """When it counts as stuck, unless it ends before; None if it was not killed."""
        return None if self.killed_at is None else self.killed_at + _STUCK_S

    def mark_stuck(self) -> None:
        """It was killed long ago and has not ended: that is its failure, unless it reported another one."""
        if "exitCode" in self._failure:
            return
        why = "it waits in the kernel, for a file system or a driver that does not answer"
        said = f"killed {_STUCK_S:.0f} s ago, and has not ended: {why}"
        self._failed("Hang", message=f"{self._failure.get('message', '')}\nrank {self.rank}, {said}".lstrip())

    def finish(self, code: int) -> Ending:
        """It was reaped; `code` is negative if a signal killed it."""
        os.close(self.orders)
        os.close(self.stacks)
        recorded = self.error_file.close()
        if recorded and code != 0 and not self._failure and not self.killed:
            self._failed("Exception", message=recorded)
        if code == -signal.SIGABRT and self._nccl_lost and not self._failure:
            self._failed("PeerLost", message=self._nccl_lost)
        if code == -signal.SIGABRT and self._uncaught and not self._failure:
            self._failed("Signal", message=f"killed by SIGABRT: {self._uncaught}")
        if code == contract.EXIT_DONE and self.must_stop and not self.uses_dtj:
            code = contract.EXIT_SIGNAL + signal.SIGTERM
            self._failed("ExitCode", message=_LEFT_ON_REQUEST, isForPeople=True)
        self.ending = self._ended(
            contract.EXIT_SIGNAL - code if code < 0 else code, signal_number=-code if code < 0 else None
        )
        return self.ending

    def request_stacks(self) -> None:
        """Ask for its Python stacks; a stopped process writes them only after it continues."""
        self.read_stacks()  # discard what came too late for an earlier request
        self.stacks_requested_at = time.monotonic()
        self.stacks_requests += 1
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, own_stacks.ASK)

    def insist_on_stacks(self) -> None:
        """Interrupt it for them, as it does not answer; see own_stacks.py for what that may cost.

        Its program may have replaced itself by another one (exec), which the signal would kill.
        """
        if not handles(self.pid, own_stacks.INSIST):
            return
        self.stacks_insisted += 1
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, own_stacks.INSIST)

    def read_stacks(self) -> str:
        """The stacks that it has written since the last call."""
        text = b""
        while data := _read(self.stacks):
            text += data
        self._stacks_read += len(text)
        return text.decode(errors="replace")

    def stacks_written(self) -> int:
        """Bytes of stacks that it has written so far."""
        return self._stacks_read + self.stacks_unread()

    def stacks_unread(self) -> int:
        """Of these, those that were not read yet."""
        return _unread(self.stacks)

    def kill_as_hung(self, message: str, *, is_shared: bool) -> None:
        """Kill it for a hang that it caused, or that no rank is to blame for.

        If it has reported a failure, and a thread of its program keeps it alive, that failure is the cause.
        """
        if "exitCode" in self._failure:
            self.kill()
            return
        self._failed("PeerLost" if is_shared else "Hang", message=message)
        self.kill_group()

    def mark_oom_killed(self, limit: str) -> None:
        """The OOM killer killed it; this replaces any reason that it reported."""
        self._failed("OOMKilled", message=limit)

    def _failed(self, reason: str, **more: Any) -> None:
        """Note the cause of its end, in the words of a rank's report and in place of one."""
        self._failure = {"reason": reason, "at": datetime.now(UTC).isoformat(), **more}

    def failing(self) -> Ending:
        """It reported a failure and will exit once its exit functions are done."""
        return self._ended(self._failure["exitCode"], signal_number=None)

    def lose_peers(self, message: str, *, generation: int, is_unformed: bool = False) -> Ending:
        """It is alive, but reports that it lost its peers, or did not reach them."""
        self.lost_in, self.is_unformed = generation, is_unformed
        self.lost = Ending(
            rank=self.rank,
            code=contract.EXIT_PEER_LOST,
            at=datetime.now(UTC),
            step=self.heartbeat.step,
            message=message,
        )
        return self.lost

    def state_in(self, generation: int) -> RankState:
        """What the coordinator must know about it if messages were lost; see `Supervisor.states`."""
        is_lost = self.lost_in == generation
        return RankState(
            generation=generation,
            holds=self.holds,
            is_ready=self.ready_in == generation,
            lost=self.lost if is_lost else None,
            is_unformed=is_lost and self.is_unformed,
            ending=self.ending,
        )

    def _ended(self, code: int, *, signal_number: int | None) -> Ending:
        step = self._failure.get("step")
        if self.killed and "exitCode" in self._failure:  # it was exiting already
            code, signal_number = self._failure["exitCode"], None
        found = Ending(
            rank=self.rank,
            code=code,
            signal=signal_number,
            at=datetime.fromisoformat(self._failure["at"]) if self._failure else datetime.now(UTC),
            step=step if step is not None else self.heartbeat.step,
            message=self._failure.get("message", ""),
            reason=self._failure.get("reason"),
            by_agent=self.killed and not self._failure,
        )
        return replace(found, wrote=last_words(self.recent)) if found.failed and not found.message else found


def _unread(fd: int) -> int:
    """Bytes that a pipe holds."""
    return int.from_bytes(fcntl.ioctl(fd, termios.FIONREAD, bytes(4)), sys.byteorder)


def _read(fd: int) -> bytes | None:
    """Some bytes, b"" at the end of the stream, None if nothing is available now."""
    try:
        return os.read(fd, _CHUNK_BYTES)
    except BlockingIOError:
        return None
