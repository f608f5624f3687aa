"""The agent of a node: keeps its ranks running as the coordinator says, to the end.

    cli.py -> launch -> coordinator.py, on replica 0 only: who belongs to which generation
                     -> ranks.py forks rank.become(program) for each rank of it; news.py hears what they say
                     -> one loop over: pipes of the ranks, the link, signals, deaths, time
                     -> report.py names the cause -> termination message, exit code

The process imports torch once and has neither threads nor an accelerator context when it forks, so a rank
starts in milliseconds, with all modules loaded, the first time and after every fault.
"""

import os
import selectors
import signal
import sys
import uuid
from dataclasses import replace
from datetime import UTC, datetime

from dtj import contract
from dtj.agent import rank as rank_process
from dtj.agent import report, termination
from dtj.agent.boards import Boards
from dtj.agent.coordinator import Coordinator
from dtj.agent.hang import Silence
from dtj.agent.link import Message
from dtj.agent.membership import Membership
from dtj.agent.news import News
from dtj.agent.options import Options
from dtj.agent.page import Page
from dtj.agent.placement import Placement, threads
from dtj.agent.ranks import Ranks, soonest
from dtj.agent.report import Ending
from dtj.agent.screen import Screen, choose
from dtj.agent.stacks import Found, Stacks, as_text
from dtj.agent.status import Status
from dtj.agent.terms import Job, Memory
from dtj.agent.uplink import Uplink
from dtj.agent.wakeup import Wakeup
from dtj.agent.warm import warm

_FORWARDED = (signal.SIGTERM, signal.SIGINT)


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
            limits=placement.limits,
            saves=bool(os.environ.get(contract.CHECKPOINT_DIR)),
        )
        self._incarnation = uuid.uuid4().hex
        self._memory: Message = {}
        self._status = Status(job=options.job, replica=placement.node_rank, attempt=options.attempt)
        self._selector = selectors.DefaultSelector()
        self._screen: Screen = choose(as_json=options.as_json)
        self._coordinator: Coordinator | None = None
        self._asked_to_stop = 0
        self._has_dead = False
        self._stop_signal = signal.SIGTERM
        self._is_over = False
        self._culprit: Ending | None = None  # of the whole job
        self._boards = Boards(of_rank_0=placement.node_rank == 0)
        self._stacks = Stacks()
        self._uplink = Uplink(
            self._selector,
            (placement.master_addr, placement.master_port),
            hello=self._hello,
            on_order=self._obey,
            say=self._say_if_it_matters,
        )
        self._news = News(
            self._status, self._boards, tell=self._uplink.tell, say=_say, grace_s=options.grace_s
        )

    def run(self) -> int:
        self._wakeup = Wakeup((*_FORWARDED, signal.SIGCHLD))
        # Ranks inherit it: one that is asked for its stacks before it can answer must not die of it.
        signal.signal(rank_process.STACKS_SIGNAL, signal.SIG_IGN)
        self._selector.register(self._wakeup, selectors.EVENT_READ, self._on_signals)
        nthreads = threads(os.environ, nproc=self._placement.nproc)
        warm(nthreads)
        self._page = Page(self._options.host, self._options.port, screen=self._screen, say=_say)
        self._page.watch(self._selector, self._on_stacks_wanted)
        self._ranks = Ranks(
            self._program,
            threads=nthreads,
            as_json=self._options.as_json,
            shown=self._options.shown,
            selector=self._selector,
            screen=self._screen,
            events=self._news,
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

    # The loop.

    def _turn(self) -> None:
        coordinator = self._coordinator
        patience = soonest(
            [
                self._uplink.deadline,
                self._page.deadline,
                self._boards.deadline,
                self._stacks.deadline,
                self._ranks.deadline,
                coordinator.deadline if coordinator else None,
            ]
        )
        for key, _ in self._selector.select(patience):
            if self._selector.get_map().get(key.fd) is key:  # an earlier one of this round may have ended it
                key.data()
        if self._has_dead:  # ranks among them have been buried in the order of their deaths
            self._reap()
        if coordinator:
            coordinator.tick()
        self._uplink.tick()
        self._ranks.tick()
        if self._page.is_due:
            self._publish()
        self._news.tick(self._ranks.living())
        self._stacks.tick(self._ranks.living())

    def _is_finished(self) -> bool:
        if self._ranks.living():
            return False
        endings = self._ranks.endings()
        # A stop was agreed by all ranks of the job: no coordinator is needed to know that it is over, unless
        # the job can go on without the pod that was asked to end.
        has_stopped = bool(endings) and all(e.code == contract.EXIT_STOPPED for e in endings)
        has_stopped = has_stopped and self._job.limits is None
        return self._is_over or has_stopped or self._asked_to_stop > 0

    def _on_signals(self) -> None:
        numbers = self._wakeup.take()
        for number in _FORWARDED:
            if number in numbers:
                self._forward(number)
        self._has_dead = self._has_dead or signal.SIGCHLD in numbers

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
        self._has_dead = False
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if not (self._coordinator and self._coordinator.reaped(pid)):
                self._ranks.reaped(pid, os.waitstatus_to_exitcode(status))

    def _on_stacks_wanted(self) -> None:
        self._stacks.ask(self._ranks.living(), lambda found: self._page.show_stacks(as_text(found)))

    def _tell_looks(self, found: list[Found]) -> None:
        for one in found:
            self._ranks.show_stacks(one.child, one.text)
        self._uplink.tell({"looks": {one.child.rank: [one.look.frame, one.look.is_stopped] for one in found}})

    # The coordinator speaks.

    def _connect(self) -> None:
        if self._placement.node_rank > 0:
            self._uplink.dial()
            return
        budget = self._options.budget
        membership = Membership(job=self._job, budget=budget, memory=Memory(in_place=budget.spent))
        silence = Silence(budget_s=self._options.hang_s)
        self._coordinator = Coordinator(
            membership, silence, self._selector, ends_hung=self._options.ends_hung, say=_say
        )
        if self._job.most > 1:
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
            self._stacks.ask(self._ranks.living(), self._tell_looks)
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
            self._uplink.hang_up()
            self._is_over = True
            self._culprit = Ending(
                rank=0, code=contract.EXIT_PEER_LOST, at=datetime.now(UTC), message=message["refused"]
            )
            self._ranks.kill()

    def _form(self, *, generation: int, port: int, kept: list[int], replicas: int, gently: bool) -> None:
        """Bring the ranks into a generation: those that hold the run are told, the others begin anew."""
        if self._asked_to_stop:
            self._uplink.tell({"stopping": True})
            return
        self._memory = self._memory | {"generation": generation}
        self._status.formed(generation)
        self._placement = replace(self._placement, nnodes=replicas)
        if self._placement.node_rank >= replicas:
            _say(f"the job goes on with {replicas} replicas; this one waits until it is needed")
            self._ranks.kill()
            return
        addr = self._uplink.peer
        for rank in self._placement.ranks:
            child = self._ranks.newest.get(rank)
            if child and child.ending is None and child.holds and rank in kept:
                child.generation = generation
                self._boards.forget(child)
                child.order({"number": generation, "addr": addr, "port": port})
                continue
            env = self._placement.env_of(rank, generation=generation, store=(addr, port), heals=bool(kept))
            self._ranks.start(rank, env, generation=generation, gently=gently)

    # What the node says.

    def _say_if_it_matters(self, message: str) -> None:
        if not self._is_finished():
            _say(message)

    def _publish(self) -> None:
        facts = self._coordinator.facts() if self._coordinator else None
        self._page.show(self._status.document(datetime.now(UTC), job=facts))

    def _finish(self) -> int:
        endings = self._ranks.endings()
        own = report.first_cause(endings)
        if self._culprit and (own is None or own.cause == "PeerLost"):  # another node's rank is to blame
            endings = [report.echo(self._culprit, now=datetime.now(UTC))]
        self._status.state = "Failed" if report.first_cause(endings) else "Done"
        self._publish()
        if self._options.termination_log:
            in_place = self._coordinator.membership.memory.in_place if self._coordinator else None
            termination.write(self._options.termination_log, endings, self._status, in_place)
        self._uplink.hang_up()
        if self._coordinator:
            self._coordinator.close()
        self._page.close()
        if not endings and self._asked_to_stop:  # before anything was started
            return contract.EXIT_SIGNAL + self._stop_signal
        return report.exit_code(endings)


def _say(message: str) -> None:
    print(f"dtj: {message}", file=sys.stderr, flush=True)
