"""Forks the ranks of this node and stays with them to the end: signals, logs, reports, exit code.

    cli.py -> launch -> fork rank.become(program) per rank
                     -> one loop over: pipes of the ranks, signals, deaths
                     -> report.py names the cause -> termination message, exit code

The process imports torch once and has neither threads nor an accelerator context when it forks, so a rank
starts in milliseconds, with all modules loaded.
"""

import os
import selectors
import signal
import socket
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from dtj import contract
from dtj.agent import rank as rank_process
from dtj.agent import report
from dtj.agent.child import Child
from dtj.agent.placement import Placement, threads
from dtj.agent.screen import Screen, choose
from dtj.agent.serve import Server
from dtj.agent.status import Status

# After the first failure: time for the rank that is the cause to say so, if others noticed before it did.
_GRACE_S = 5.0
_PUBLISH_S = 0.25
_FORWARDED = (signal.SIGTERM, signal.SIGINT)


@dataclass(frozen=True, kw_only=True)
class Options:
    """How to launch, apart from how many.

    shown            ranks whose lines are printed; None prints all
    as_json          every line an object
    port             for /status; None serves nothing
    host             interface of that port
    termination_log  where the termination message goes; None writes none
    job, attempt, replica  who this node is, for /status
    """

    shown: frozenset[int] | None = None
    as_json: bool = False
    port: int | None = None
    host: str = "127.0.0.1"
    termination_log: Path | None = None
    job: str = ""
    attempt: int = 0
    replica: int = 0


def launch(program: rank_process.Program, placement: Placement, options: Options) -> int:
    """Run the program as all ranks of this node; the exit code of docs/contract.md."""
    return _Agent(program, placement, options).run()


def free_port() -> int:
    """A port of this machine that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class _Agent:
    def __init__(self, program: rank_process.Program, placement: Placement, options: Options) -> None:
        self._program = program
        self._placement = placement
        self._options = options
        self._status = Status(job=options.job, replica=options.replica, attempt=options.attempt)
        self._children: dict[int, Child] = {}
        self._selector = selectors.DefaultSelector()
        self._screen: Screen = choose(as_json=options.as_json)
        self._asked_to_stop = 0
        self._kill_at: float | None = None
        self._publish_at: float | None = None
        self._server: Server | None = None

    def run(self) -> int:
        self._listen_to_signals()
        nthreads = threads(os.environ, nproc=self._placement.nproc)
        _warm(nthreads)
        self._start_server()
        for rank in self._placement.ranks:
            self._start(rank, nthreads)
        self._publish()
        try:
            while self._living():
                self._turn()
        except BrokenPipeError:  # whoever read our output is gone
            self._kill_all()
            return contract.EXIT_SIGNAL + signal.SIGPIPE
        finally:
            self._screen.close()
        return self._finish()

    def _listen_to_signals(self) -> None:
        """A signal is a byte in a pipe, read by the loop: nothing happens inside a handler."""
        self._wake, write = os.pipe()
        os.set_blocking(self._wake, False)
        os.set_blocking(write, False)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        for number in (*_FORWARDED, signal.SIGCHLD):
            signal.signal(number, lambda *_: None)
        self._selector.register(self._wake, selectors.EVENT_READ, self._on_signals)

    def _start_server(self) -> None:
        if self._options.port is None:
            return
        try:
            self._server = Server.start(self._options.host, self._options.port)
        except OSError as error:  # training matters more than its status page
            _say(f"no status page on port {self._options.port}: {error.strerror}")

    def _start(self, rank: int, nthreads: int) -> None:
        child = Child.fork(
            self._program,
            env=self._placement.env_of(rank),
            threads=nthreads,
            as_json=self._options.as_json,
        )
        self._children[child.pid] = child
        self._status.started(rank, child.pid)
        for fd in child.streams:
            self._selector.register(fd, selectors.EVENT_READ, lambda fd=fd: self._on_output(child, fd))
        self._selector.register(child.reports, selectors.EVENT_READ, lambda: self._on_reports(child))

    # What the loop reacts to.

    def _turn(self) -> None:
        until = [t for t in (self._kill_at, self._publish_at) if t is not None]
        patience = max(0.0, min(until) - time.monotonic()) if until else None
        for key, _ in self._selector.select(patience):
            if key.fd in self._selector.get_map():  # an earlier one of this round may have buried it
                key.data()
        if self._publish_at is not None and time.monotonic() >= self._publish_at:
            self._publish()
        if self._kill_at is not None and time.monotonic() >= self._kill_at:
            self._kill_all()

    def _on_signals(self) -> None:
        numbers = os.read(self._wake, 4096)
        for number in _FORWARDED:
            if number in numbers:
                self._forward(number)
        if signal.SIGCHLD in numbers:
            self._reap()

    def _forward(self, number: signal.Signals) -> None:
        """Once politely; a second Ctrl-C is from someone in a hurry."""
        self._asked_to_stop += 1
        self._status.state = "Stopping"
        if self._asked_to_stop > 1 and number == signal.SIGINT:
            self._kill_all()
        for child in self._living():
            child.signal(number)

    def _reap(self) -> None:
        """Bury the ranks, and as pid 1 also orphans that nobody else can."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid in self._children:
                self._bury(self._children[pid], os.waitstatus_to_exitcode(status))

    def _bury(self, child: Child, code: int) -> None:
        child.kill()  # what it started and left behind
        for fd in child.streams:
            if fd in self._selector.get_map():
                self._show(child, fd, child.last_lines(fd))
                self._forget(fd)
        if child.reports in self._selector.get_map():
            self._on_reports(child)
        ending = child.bury(code)
        self._status.ended(child.rank, failed=ending.failed)
        if ending.failed and self._kill_at is None:
            self._kill_at = time.monotonic() + _GRACE_S

    def _kill_all(self) -> None:
        self._kill_at = None
        for child in self._living():
            child.killed = True
            child.kill()

    def _living(self) -> list[Child]:
        return [c for c in self._children.values() if c.ending is None]

    def _on_output(self, child: Child, fd: int) -> None:
        text, is_over = child.read_lines(fd)
        self._show(child, fd, text)
        if is_over:
            self._forget(fd)

    def _on_reports(self, child: Child) -> None:
        reports, is_over = child.read_reports()
        for fields in reports:
            self._status.hear(child.rank, fields)
        if is_over:
            self._forget(child.reports)

    def _forget(self, fd: int) -> None:
        self._selector.unregister(fd)
        os.close(fd)

    # What the node says.

    def _show(self, child: Child, fd: int, text: bytes) -> None:
        if text and (self._options.shown is None or child.rank in self._options.shown):
            self._screen.write(child.streams[fd][0], text)

    def _publish(self) -> None:
        document = self._status.document(datetime.now(UTC))
        self._screen.progress(document)
        if self._server:
            self._server.publish(document)
        if self._server or self._screen.is_live:
            self._publish_at = time.monotonic() + _PUBLISH_S

    def _finish(self) -> int:
        endings = [c.ending for c in self._children.values() if c.ending]
        culprit = report.first_cause(endings)
        if culprit:
            self._tell(culprit)
        self._status.state = "Failed" if culprit else "Done"
        self._publish()
        if self._options.termination_log:
            fields = report.termination(endings, checkpoint=self._status.checkpoint, now=datetime.now(UTC))
            _write(
                self._options.termination_log,
                report.encode(report.fit(fields, limit=contract.TERMINATION_BYTES)),
            )
        if self._server:
            self._server.stop()
        return report.exit_code(endings)

    def _tell(self, culprit: report.Ending) -> None:
        """The last line of the log names the cause; a message for people is printed once for all ranks."""
        if any(c.rank == culprit.rank and c.is_for_people() for c in self._children.values()):
            _say(culprit.message)
        elif culprit.message:
            _say(f"rank {culprit.rank} failed first: {culprit.message.splitlines()[-1]}")
        else:
            _say(report.sentence(culprit, culprit.step))


def _warm(nthreads: int) -> None:
    """Import once what every rank needs; DDP and the optimizers load torch._dynamo at their first use."""
    os.environ.setdefault("OMP_NUM_THREADS", str(nthreads))  # the libraries read it when they are loaded
    _find_temporary_folder()

    import dtj.loop  # noqa: F401, PLC0415


def _find_temporary_folder() -> None:
    """Importing torch takes one; in a pod with a read-only root only shared memory may be writable."""
    try:
        tempfile.gettempdir()
    except FileNotFoundError:
        os.environ["TMPDIR"] = "/dev/shm"


def _write(path: Path, data: bytes) -> None:
    try:
        path.write_bytes(data)
    except OSError as error:  # the exit code still says what happened
        _say(f"no termination message in {path}: {error.strerror}")


def _say(message: str) -> None:
    print(f"dtj: {message}", file=sys.stderr, flush=True)
