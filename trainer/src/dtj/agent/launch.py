"""The agent of a node: keeps its ranks running as the coordinator says, to the end.

    cli.py -> launch -> coordinator.py, on replica 0 only: who belongs to which generation
                     -> ranks.py forks rank.become(program) for each rank of it
                     -> one loop over: pipes of the ranks, the link, signals, deaths, time
                     -> report.py names the cause -> termination message, exit code

The process imports torch once and has neither threads nor an accelerator context when it forks, so a rank
starts in milliseconds, with all modules loaded, the first time and after every fault.
"""

import importlib
import os
import selectors
import signal
import sys
import tempfile
import time
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dtj import contract
from dtj.agent import rank as rank_process
from dtj.agent import report
from dtj.agent.child import Child
from dtj.agent.coordinator import Coordinator
from dtj.agent.hang import Silence
from dtj.agent.link import Message
from dtj.agent.membership import Budget, Job, Membership
from dtj.agent.placement import Placement, threads
from dtj.agent.ranks import Events, Ranks, soonest
from dtj.agent.report import Ending
from dtj.agent.screen import Screen, choose
from dtj.agent.serve import Server
from dtj.agent.status import Status
from dtj.agent.uplink import Uplink

_PUBLISH_S = 0.25
# How often the ranks' boards are read: often enough to account for every step of rank 0.
_READ_S = {True: 0.05, False: 0.25}
# So long a rank that was asked for its stacks may take to write them.
_LOOK_S = 1.0
_FORWARDED = (signal.SIGTERM, signal.SIGINT)


@dataclass(frozen=True, kw_only=True)
class Options:
    """How to launch, apart from how many.

    shown            ranks whose lines are printed; None prints all
    as_json          every line an object
    port             for /status; None serves nothing
    host             interface of that port
    termination_log  where the termination message goes; None writes none
    job, uid, attempt  which job, as the operator says
    budget           how many restarts in place
    hang_s           seconds without a step that are a hang; None derives them from the steps
    """

    budget: Budget
    shown: frozenset[int] | None = None
    as_json: bool = False
    port: int | None = None
    host: str = "127.0.0.1"
    termination_log: Path | None = None
    job: str = ""
    uid: str = ""
    attempt: int = 0
    hang_s: float | None = None


def launch(program: rank_process.Program, placement: Placement, options: Options) -> int:
    """Run the program as all ranks of this node; the exit code of docs/contract.md."""
    return _Agent(program, placement, options).run()


class _Agent:
    def __init__(self, program: rank_process.Program, placement: Placement, options: Options) -> None:
        self._program = program
        self._placement = placement
        self._options = options
        self._job = Job(
            uid=options.uid,
            attempt=options.attempt,
            replicas=placement.nnodes,
            processes=placement.nproc,
        )
        self._incarnation = uuid.uuid4().hex
        self._memory: Message = {}
        self._status = Status(job=options.job, replica=placement.node_rank, attempt=options.attempt)
        self._selector = selectors.DefaultSelector()
        self._screen: Screen = choose(as_json=options.as_json)
        self._coordinator: Coordinator | None = None
        self._server: Server | None = None
        self._asked_to_stop = 0
        self._stop_signal = signal.SIGTERM
        self._said = ""
        self._is_over = False
        self._culprit: Ending | None = None  # of the whole job
        self._read: dict[int, tuple[int, int, bool]] = {}  # pid -> what its board said last
        self._read_every_s = _READ_S[placement.node_rank == 0]
        self._read_at = time.monotonic() + self._read_every_s
        self._look_at: float | None = None
        self._publish_at: float | None = None
        self._uplink = Uplink(
            self._selector,
            (placement.master_addr, placement.master_port),
            hello=self._hello,
            on_order=self._obey,
            say=self._say_if_it_matters,
        )

    def run(self) -> int:
        self._listen_to_signals()
        nthreads = threads(os.environ, nproc=self._placement.nproc)
        _warm(nthreads)
        self._start_server()
        self._ranks = Ranks(
            self._program,
            threads=nthreads,
            as_json=self._options.as_json,
            shown=self._options.shown,
            selector=self._selector,
            screen=self._screen,
            events=Events(started=self._on_start, reported=self._on_report, ended=self._on_end),
        )
        try:
            self._connect()
            self._publish()
            while not self._is_finished():
                self._turn()
        except BrokenPipeError:  # whoever read our output is gone
            self._ranks.kill()
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

    # The loop.

    def _turn(self) -> None:
        coordinator = self._coordinator
        patience = soonest(
            [
                self._uplink.deadline,
                self._publish_at,
                self._read_at,
                self._look_at,
                self._ranks.deadline,
                coordinator.deadline if coordinator else None,
            ]
        )
        for key, _ in self._selector.select(patience):
            if self._selector.get_map().get(key.fd) is key:  # an earlier one of this round may have ended it
                key.data()
        if coordinator:
            coordinator.tick()
        self._uplink.tick()
        self._ranks.tick()
        now = time.monotonic()
        if self._publish_at is not None and now >= self._publish_at:
            self._publish()
        if now >= self._read_at:
            self._read_boards()
        if self._look_at is not None and now >= self._look_at:
            self._tell_looks()

    def _is_finished(self) -> bool:
        if self._ranks.living():
            return False
        endings = self._ranks.endings()
        # A stop was agreed by all ranks of the job: no coordinator is needed to know that it is over.
        has_stopped = bool(endings) and all(e.code == contract.EXIT_STOPPED for e in endings)
        return self._is_over or has_stopped or self._asked_to_stop > 0

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
        self._stop_signal = number
        self._status.state = "Stopping"
        self._uplink.tell({"stopping": True})
        if self._asked_to_stop > 1 and number == signal.SIGINT:
            self._ranks.kill()
        self._ranks.signal(number)

    def _reap(self) -> None:
        """Bury whatever ended: ranks, helpers, and as pid 1 also orphans that nobody else can."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if not (self._coordinator and self._coordinator.reaped(pid)):
                self._ranks.reaped(pid, os.waitstatus_to_exitcode(status))

    # Its ranks speak.

    def _on_start(self, child: Child) -> None:
        self._status.started(child.rank, child.pid)

    def _on_report(self, child: Child, fields: dict[str, Any]) -> None:
        if "ready" in fields:
            child.uses_dtj = True
            self._uplink.tell({"ready": [child.rank, fields["ready"]]})
        elif "hold" in fields:
            child.holds = fields["hold"]
            self._uplink.tell({"hold": child.rank, "holds": child.holds})
        elif "unformed" in fields:
            _say(f"rank {child.rank} could not open its groups: {fields['message']}")
            self._uplink.tell({"unformed": fields["unformed"]})
        elif "lost" in fields:
            lost = child.lost(fields["lost"]).to_json()
            self._uplink.tell({"lost": lost, "generation": fields["generation"]})
        else:
            self._status.hear(child.rank, fields)

    def _on_end(self, child: Child) -> None:
        ending = child.ending
        assert ending is not None
        self._read_board(child)
        self._status.ended(child.rank, failed=ending.failed)
        if ending.by_agent:
            return
        self._uplink.tell({"ended": ending.to_json(), "generation": child.generation})
        if ending.failed and ending.cause != "PeerLost":
            self._say_once(_headline(child, ending))

    def _read_boards(self) -> None:
        """Which ranks have done something since the last time."""
        self._read_at = time.monotonic() + self._read_every_s
        found = {str(child.rank): news for child in self._ranks.living() if (news := self._read_board(child))}
        if found:
            self._uplink.tell({"signs": found})

    def _read_board(self, child: Child) -> list[object] | None:
        """Generation and step of a rank, and whether it has declared a pause; None where nothing is new."""
        board = child.board
        now = (board.step if board.step is not None else -1, board.signs, board.is_paused)
        if self._read.get(child.pid, (-1, 0, False)) == now:
            return None
        self._read[child.pid] = now
        if board.step is not None:
            self._status.hear(child.rank, {"step": board.step})
        return [child.generation, board.step, board.is_paused]

    def _tell_looks(self) -> None:
        self._look_at = None
        looks = {}
        for child in self._ranks.living():
            look, stacks = child.look()
            looks[child.rank] = [look.frame, look.is_stopped]
            self._ranks.show_stacks(child, stacks or "no stack: the process does not answer\n")
        self._uplink.tell({"looks": looks})

    # The coordinator speaks.

    def _connect(self) -> None:
        if self._placement.node_rank > 0:
            self._uplink.dial()
            return
        membership = Membership(job=self._job, budget=self._options.budget)
        silence = Silence(budget_s=self._options.hang_s)
        self._coordinator = Coordinator(membership, silence, self._selector, say=_say)
        if self._placement.nnodes > 1:
            self._coordinator.listen(self._placement.master_port)
        self._uplink.connect(self._coordinator.link())

    def _hello(self) -> Message:
        return {
            "uid": self._job.uid,
            "attempt": self._job.attempt,
            "replica": self._placement.node_rank,
            "incarnation": self._incarnation,
            "healable": [child.rank for child in self._ranks.living() if child.holds],
            "memory": self._memory,
        }

    def _obey(self, message: Message) -> None:
        if "form" in message:
            self._form(**message["form"])
        elif "go" in message:
            for child in self._ranks.living():
                if child.generation == message["go"]:
                    child.order({"go": message["go"]})
        elif "look" in message:
            for child in self._ranks.living():
                child.ask_stacks()
            self._look_at = time.monotonic() + _LOOK_S
        elif "hang" in message:
            for child in self._ranks.living():
                if str(child.rank) in message["hang"] and child.generation == message["generation"]:
                    child.condemn(message["hang"][str(child.rank)])
        elif "beat" in message:
            self._memory = message["beat"]
        elif "end" in message:
            self._is_over = True
            self._culprit = message["end"] and Ending.from_json(message["end"])
            if self._culprit:
                self._ranks.wind_up()
        elif "refused" in message:
            _say(f"this pod is not part of the job any more: {message['refused']}")
            self._is_over = True
            self._culprit = Ending(
                rank=0, code=contract.EXIT_PEER_LOST, at=datetime.now(UTC), message=message["refused"]
            )
            self._ranks.kill()

    def _form(self, *, generation: int, port: int, kept: list[int]) -> None:
        """Bring the ranks into a generation: those that hold the run are told, the others begin anew."""
        if self._asked_to_stop:
            self._uplink.tell({"stopping": True})
            return
        self._memory = self._memory | {"generation": generation}
        self._status.formed(generation)
        addr = self._uplink.peer
        for rank in self._placement.ranks:
            child = self._ranks.newest.get(rank)
            if child and child.ending is None and child.holds and rank in kept:
                child.generation = generation
                self._read.pop(child.pid, None)  # what is known of it is told anew, a pause for instance
                child.order({"number": generation, "addr": addr, "port": port})
                continue
            env = self._placement.env_of(rank, generation=generation, store=(addr, port), heals=bool(kept))
            self._ranks.start(rank, env, generation=generation)

    # What the node says.

    def _say_once(self, message: str) -> None:
        """Ranks with the same mistake say the same."""
        if message != self._said:
            self._said = message
            _say(message)

    def _say_if_it_matters(self, message: str) -> None:
        if not self._is_finished():
            _say(message)

    def _publish(self) -> None:
        facts = self._coordinator.facts() if self._coordinator else None
        document = self._status.document(datetime.now(UTC), job=facts)
        self._screen.progress(document)
        if self._server:
            self._server.publish(document)
        if self._server or self._screen.is_live:
            self._publish_at = time.monotonic() + _PUBLISH_S

    def _finish(self) -> int:
        endings = self._ranks.endings()
        own = report.first_cause(endings)
        if self._culprit and not own:  # another node's rank is to blame
            endings = [report.echo(self._culprit, now=datetime.now(UTC))]
        self._status.state = "Failed" if report.first_cause(endings) else "Done"
        self._publish()
        if self._options.termination_log:
            fields = report.termination(
                endings,
                checkpoint=self._status.checkpoint,
                generation=self._status.generation,
                now=datetime.now(UTC),
            )
            _write(
                self._options.termination_log,
                report.encode(report.fit(fields, limit=contract.TERMINATION_BYTES)),
            )
        self._uplink.hang_up()
        if self._coordinator:
            self._coordinator.close()
        if self._server:
            self._server.stop()
        if not endings:  # asked to stop before anything was started
            return contract.EXIT_SIGNAL + self._stop_signal
        return report.exit_code(endings)


def _headline(child: Child, ending: Ending) -> str:
    """The cause in one line of the log; a message for people is printed once for all ranks."""
    if child.is_for_people():
        return ending.message
    if ending.message:
        return f"rank {ending.rank} failed: {ending.message.splitlines()[-1]}"
    return report.sentence(ending, ending.step)


def _warm(nthreads: int) -> None:
    """Import once what every rank needs; DDP and the optimizers load torch._dynamo at their first use."""
    os.environ.setdefault("OMP_NUM_THREADS", str(nthreads))  # the libraries read it when they are loaded
    # torch asks for the name of every address that it connects to: a lost packet shall cost 1 s, not 5.
    os.environ.setdefault("RES_OPTIONS", "timeout:1 attempts:5")
    _find_temporary_folder()
    for name in ("torch._dynamo", "torch.nn.parallel", "dtj.loop"):
        importlib.import_module(name)


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
