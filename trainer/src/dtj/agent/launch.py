"""The agent of a pod: runs its ranks as the coordinator orders, until the job is over.

    cli/ -> launch -> coordinator/, on replica 0 only: decides who belongs to which generation
                   -> replica/orders.py carries out the coordinator's orders
                   -> replica/supervisor.py forks rank/main.become(program) for each rank
                   -> replica/rank_events.py handles what the ranks report
                   -> one loop over: pipes of the ranks, the link, signals, deaths, time
                   -> wire/outcome.py names the cause -> termination message, exit code

The process imports torch once and has neither threads nor an accelerator context when it forks. So a rank
starts in milliseconds with all modules loaded, the first time and after every fault.
"""

import errno
import json
import os
import selectors
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from dtj import contract
from dtj.agent import process_end
from dtj.agent.coordinator.coordinator import Coordinator
from dtj.agent.coordinator.membership import Membership
from dtj.agent.coordinator.restarts import Restarts
from dtj.agent.coordinator.watch.hang import Watchdog
from dtj.agent.open_files import raise_open_files
from dtj.agent.options import Options
from dtj.agent.placement import Placement, threads, unused_gpus
from dtj.agent.rank import cuda, own_stacks
from dtj.agent.rank.main import Program
from dtj.agent.rank.preload import preload
from dtj.agent.rank.process import RankProcess
from dtj.agent.replica.coordinator_client import CoordinatorClient
from dtj.agent.replica.heartbeats import HeartbeatReader, interval_s
from dtj.agent.replica.keeper_process import KeeperProcess
from dtj.agent.replica.looks import Looks
from dtj.agent.replica.orders import Orders
from dtj.agent.replica.rank_events import RankEvents
from dtj.agent.replica.stacks import Stacks, as_text
from dtj.agent.replica.supervisor import Supervisor, soonest
from dtj.agent.report.console import Console, choose_console
from dtj.agent.report.status import Status
from dtj.agent.report.status_page import StatusPage
from dtj.agent.signals import SignalPipe, hang_up
from dtj.agent.wire import outcome
from dtj.agent.wire.facts import Stopping
from dtj.agent.wire.link import Message
from dtj.agent.wire.outcome import Ending
from dtj.agent.wire.protocol import Job
from dtj.copies import slot
from dtj.errors import MachineError
from dtj.ranks.device_files import gpus_given

_FORWARDED = (signal.SIGTERM, signal.SIGINT)
_FILES = "raise the limit of open files (ulimit -n, fs.file-max of the node), or start fewer ranks here"
_LACKS = {
    errno.EAGAIN: "raise the limit of processes and threads (pids) of this container, or start fewer",
    errno.ENOMEM: "raise the memory limit of this container, or start fewer ranks here",
    errno.EMFILE: _FILES,
    errno.ENFILE: _FILES,
}
# If all ranks are done and replica 0 is gone, its last word may be lost: so long it may take to come back.
DONE_S = 600.0


def launch(program: Program, placement: Placement, options: Options) -> NoReturn:
    """Run the program as all ranks of this pod, and end with the exit code of docs/contract.md."""
    os.environ[contract.TORCHRUN_RESTARTS] = str(options.budget.restarts)
    process_end.end(_Agent(program, placement, options).run())


class _Agent:
    def __init__(self, program: Program, placement: Placement, options: Options) -> None:
        self._program = program
        self._placement = placement
        self._options = options
        limits = placement.limits
        self._job = Job(
            uid=options.uid,
            attempt=options.attempt,
            replicas=(limits and limits.largest(placement.nnodes)) or placement.nnodes,
            processes=placement.nproc,
            limits=limits,
            saves=bool(os.environ.get(contract.CHECKPOINT_DIR)),
            deciding=options.deciding,
        )
        self._log = partial(_log, as_json=options.as_json)
        self._status = Status(
            job=options.job, uid=options.uid, replica=placement.node_rank, attempt=options.attempt
        )
        self._selector = selectors.DefaultSelector()
        self._console: Console = choose_console(as_json=options.as_json, in_job=bool(options.job))
        self._coordinator: Coordinator | None = None
        self._stop_requests = 0
        self._has_dead = False
        self._stop_signal = signal.SIGTERM
        self._heartbeats = HeartbeatReader(
            every_s=interval_s(self._job.most, of_rank_0=placement.node_rank == 0)
        )
        self._stacks = Stacks()
        self._client = CoordinatorClient(
            self._selector,
            (placement.master_addr, placement.master_port),
            agents=self._job.most,
            hello=self._hello,
            on_order=self._on_order,
            log=self._log_unless_finished,
        )
        self._events = RankEvents(
            self._status,
            self._heartbeats,
            send=self._client.send,
            log=self._log,
            replace=self._leave_machine if options.job else None,
            grace_s=options.grace_s,
        )

    def run(self) -> int:
        raise_open_files()
        self._signals = SignalPipe((*_FORWARDED, *hang_up(), signal.SIGCHLD))
        own_stacks.ignore()
        self._selector.register(self._signals, selectors.EVENT_READ, self._on_signals)
        nthreads = threads(os.environ, nproc=self._placement.nproc)
        preload(nthreads)
        cuda.start_again_if_initialized(self._log, keep_signals=self._signals.keep_for_next_program)
        gpus, in_job = gpus_given(os.environ), bool(self._options.job)
        if hint := unused_gpus(self._placement.nproc, gpus=gpus, in_job=in_job):
            self._log(hint)
        self._page = StatusPage(self._options.host, self._options.port, console=self._console, log=self._log)
        self._page.watch(self._selector, self._on_stacks_requested)
        slots = {rank: slot.create(rank) for rank in self._placement.ranks}
        self._keeper = self._start_keeper(slots)
        self._supervisor = Supervisor(
            self._program,
            threads=nthreads,
            as_json=self._options.as_json,
            shown=self._options.shown,
            selector=self._selector,
            slots=slots,
            write=self._console.write,
            events=self._events,
        )
        self._looks = Looks(self._stacks, self._heartbeats.activity, self._supervisor.alive)
        self._orders = Orders(
            self._job,
            self._placement,
            status=self._status,
            heartbeats=self._heartbeats,
            looks=self._looks,
            supervisor=self._supervisor,
            client=self._client,
            log=self._log,
        )
        self._orders.keeper = self._keeper
        allowed = self._options.budget.restarts if self._options.job else None
        self._orders.remember(self._options.past, allowed=allowed)
        try:
            self._connect()
            self._publish()
            while not self._is_finished():
                self._run_once()
        except BrokenPipeError:  # the reader of our output is gone
            self._supervisor.kill()
            return contract.EXIT_SIGNAL + signal.SIGPIPE
        except (MachineError, OSError) as error:
            self._give_up(error)
        finally:
            self._console.close()
        return self._finish()

    def _give_up(self, error: MachineError | OSError) -> None:
        """Raise an error that is not about a lack of processes, memory or files on this machine."""
        if isinstance(error, OSError):
            error = lacking(error)
        self._log(str(error))
        rank, now = self._placement.ranks.start, datetime.now(UTC)
        self._orders.culprit = Ending(rank=rank, code=error.exit_code, at=now, message=str(error))
        self._supervisor.kill()

    def _run_once(self) -> None:
        coordinator = self._coordinator
        timeout_s = soonest(
            [
                self._client.deadline,
                self._page.deadline,
                self._heartbeats.deadline,
                self._stacks.deadline,
                self._looks.deadline,
                self._supervisor.deadline,
                coordinator.deadline if coordinator else None,
            ]
        )
        for key, _ in self._selector.select(timeout_s):
            # An earlier callback of this round may have closed it.
            if self._selector.get_map().get(key.fd) is key:
                key.data()
        if self._has_dead:  # after the callbacks, which reap ranks in the order of their deaths
            self._reap()
        if coordinator:
            coordinator.tick()
        self._client.tick()
        self._supervisor.tick()
        if self._page.is_due:
            self._publish()
        self._events.tick(self._supervisor.alive())
        self._stacks.tick(self._supervisor.alive())
        self._looks.tick()

    def _is_finished(self) -> bool:
        if self._supervisor.alive():
            return False
        endings = self._supervisor.endings()
        # All ranks of the job agreed on the stop, so it is over without a word from the coordinator, unless
        # the job is elastic and can continue without the pod that was asked to terminate.
        has_stopped = bool(endings) and all(e.has_stopped for e in endings)
        has_stopped = has_stopped and self._job.limits is None
        if self._orders.is_over or has_stopped or self._is_alone(endings):
            return True
        # The other agents need the coordinator until their ranks are done, too; a second Ctrl-C ends it.
        return self._stop_requests > (1 if self._coordinator and is_done(endings) else 0)

    def _is_alone(self, endings: Sequence[Ending]) -> bool:
        """All ranks are done, and replica 0 does not come back to say that the job is over."""
        return is_done(endings) and self._client.unheard_s(time.monotonic()) > DONE_S

    def _on_signals(self) -> None:
        numbers = self._signals.take()
        for number in _FORWARDED:
            if number in numbers:
                self._forward(number)
        if signal.SIGHUP in numbers:
            self._log("the terminal is gone (SIGHUP): stopping, as after SIGTERM")
            self._forward(signal.SIGTERM)
        self._has_dead = self._has_dead or signal.SIGCHLD in numbers

    def _leave_machine(self, failed: RankProcess) -> None:
        """End this pod because of a rank that this machine fails; the other pods wait for its replacement."""
        self._announce_stop()
        self._supervisor.leave(failed)

    def _forward(self, number: signal.Signals) -> None:
        """Forward the signal to the ranks; a second Ctrl-C kills them."""
        self._stop_signal = number
        self._announce_stop()
        if self._stop_requests > 1 and number == signal.SIGINT:
            self._supervisor.kill()
        self._supervisor.stop(number)

    def _announce_stop(self) -> None:
        self._stop_requests += 1
        self._orders.is_stopping = True
        self._status.state = "Stopping"
        self._client.send(Stopping())

    def _reap(self) -> None:
        """Reap every exited child: ranks, helpers and, as pid 1, orphans."""
        self._has_dead = False
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            is_store = self._coordinator is not None and self._coordinator.reaped(pid)
            if not (is_store or self._page.reaped(pid)):
                self._supervisor.reaped(pid, os.waitstatus_to_exitcode(status))

    def _on_stacks_requested(self) -> None:
        self._stacks.request(self._supervisor.alive(), lambda found: self._page.show_stacks(as_text(found)))

    def _connect(self) -> None:
        if self._placement.node_rank > 0:
            self._client.connect()
            return
        restarts = Restarts(budget=self._options.budget)
        membership = Membership(job=self._job, restarts=restarts, state=self._options.past)
        watchdog = Watchdog(timeout_s=self._options.hang_s)
        self._coordinator = Coordinator(
            membership,
            watchdog,
            self._selector,
            restarts_hung=self._options.restarts_hung,
            working_s=self._options.working_s,
            log=self._log,
        )
        if self._job.most > 1:
            self._coordinator.listen(self._placement.master_port)
        self._client.attach(self._coordinator.link())

    def _start_keeper(self, slots: Mapping[int, Sequence[int]]) -> KeeperProcess | None:
        """Start the exchange of copies with other replicas, if there are any."""
        if self._job.most == 1 or not self._options.has_buddy or not all(slots.values()):
            return None
        try:
            found = KeeperProcess.start(slots, log=self._log)
        except OSError as error:
            self._log(f"no copies of state on other replicas: {error}")
            return None
        self._selector.register(found, selectors.EVENT_READ, self._on_keeper_ended)
        return found

    def _on_keeper_ended(self) -> None:
        assert self._keeper is not None
        self._selector.unregister(self._keeper)
        self._keeper.ended()
        self._log("the process that exchanges copies of state with other replicas has ended")

    def _hello(self) -> Message:
        return self._orders.hello()

    def _on_order(self, message: Message) -> None:
        self._orders.obey(message)

    def _log_unless_finished(self, message: str) -> None:
        if not self._is_finished():
            self._log(message)

    def _publish(self) -> None:
        fields = self._coordinator.status_fields() if self._coordinator else None
        unheard_s = None if fields else round(self._client.unheard_s(time.monotonic()), 1)
        self._page.show(self._status.document(datetime.now(UTC), job=fields, unheard_s=unheard_s))

    def _finish(self) -> int:
        endings = self._supervisor.endings()
        if self._orders.has_succeeded and not self._stop_requests:
            if outcome.first_cause(endings):
                self._log("the job had succeeded before this failure, so this pod ends with exit code 0")
            endings = outcome.excused(endings)
        if self._is_alone(endings):
            gone = f"replica 0 has been gone for {DONE_S:.0f} s"
            self._log(f"all ranks are done, and {gone}: not waiting for it")
        own = outcome.first_cause(endings)
        culprit, elsewhere = self._orders.culprit, None
        if outcome.came_first(culprit, endings, ranks=self._placement.ranks):
            elsewhere = outcome.failure_fields(
                culprit, generation=self._status.generation, processes=self._placement.nproc
            )
        if culprit and (own is None or own.cause == "PeerLost"):  # usually a rank of another replica
            is_ours = culprit.rank in self._placement.ranks
            endings = [culprit if is_ours else outcome.echo(culprit, now=datetime.now(UTC))]
        elif self._stop_requests and not self._orders.is_over and outcome.is_idle(endings):
            # The ranks were not started yet, not needed at present, or killed by a second Ctrl-C.
            now = datetime.now(UTC)
            endings = [
                outcome.idle_ending(rank=self._placement.ranks.start, number=self._stop_signal, now=now)
            ]
        self._status.state = "Failed" if outcome.first_cause(endings) else "Done"
        self._publish()
        if self._options.termination_log:
            fields = outcome.termination_fields(
                endings,
                ranks=self._placement.ranks,
                elsewhere=elsewhere,
                reported=self._status.reported,
                generation=self._status.generation,
                known=self._orders.coordinator_state,
                now=datetime.now(UTC),
            )
            self._write(self._options.termination_log, fields)
        self._client.disconnect()
        if self._coordinator:
            self._coordinator.close()
        self._page.close()
        if self._keeper:
            self._keeper.stop()
        return outcome.exit_code(endings)

    def _write(self, path: Path, fields: Mapping[str, Any]) -> None:
        """Write the termination message, cut to its size. If that fails, the exit code says what happened."""
        try:
            path.write_bytes(outcome.encode(outcome.fit(dict(fields), limit=contract.TERMINATION_BYTES)))
        except OSError as error:
            self._log(f"cannot write the termination message to {path}: {error.strerror}")


def is_done(endings: Sequence[Ending]) -> bool:
    """Whether there were ranks, and none of them failed or stopped."""
    return bool(endings) and all(e.code == contract.EXIT_DONE and not e.by_agent for e in endings)


def lacking(error: OSError) -> MachineError:
    """What this machine lacks to start another process; raises an error that is about something else."""
    if (fix := _LACKS.get(error.errno or 0)) is None:
        raise error
    return MachineError(f"the agent cannot start another process: {error.strerror}", fix=fix)


def _log(message: str, *, as_json: bool) -> None:
    text = f"dtj: {message}"
    try:
        print(json.dumps({"message": text}) if as_json else text, file=sys.stderr, flush=True)
    except BrokenPipeError:
        raise
    except OSError:  # as in console.py: the disk is full, for instance
        return
