"""Forks, reads, signals and reaps the ranks of this pod, and forks them again if asked to.

It knows processes and pipes; `orders.py` decides which rank runs when.
"""

import errno
import os
import selectors
import signal
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from dtj.agent.rank.log_lines import LogLines
from dtj.agent.rank.main import Program
from dtj.agent.rank.oom import OomKills
from dtj.agent.rank.process import Leaving, RankProcess
from dtj.agent.wire.outcome import Ending
from dtj.agent.wire.protocol import RankState

# A script may clean up when it is restarted; one that ignores SIGTERM must not delay the others.
_TERM_GRACE_S = 5.0
# A rank that saves before it stops completes its step first: it gets 60 s, or two steps if these are longer.
_SAVE_S = 60.0
# It gets as long again, up to this limit, if it is in a save, or has shown that it works (run.evaluate).
_LONGEST_SAVE_S = 600.0
# Of an old kernel, and of a filter of system calls.
_NO_PIDFD = (errno.ENOSYS, errno.EPERM, errno.EINVAL)


class Listener(Protocol):
    """Receives what happens to the ranks; see rank_events.py."""

    def started(self, process: RankProcess) -> None: ...
    def reported(self, process: RankProcess, fields: dict[str, Any]) -> None: ...
    def ended(self, process: RankProcess, beside: Iterable[RankProcess]) -> None: ...
    def cut_off(self, process: RankProcess) -> None: ...
    def stuck(self, process: RankProcess) -> None: ...


class Supervisor:
    """At most one live process per rank.

    slots   rank -> file descriptors of the shared memory for copies of its state
    write   writes the ranks' output to the agent's own stdout (1) or stderr (2)
    events  called for everything that happens to a rank
    """

    def __init__(
        self,
        program: Program,
        *,
        threads: int,
        as_json: bool,
        shown: frozenset[int] | None,
        selector: selectors.BaseSelector,
        slots: Mapping[int, tuple[int, ...]],
        write: Callable[[int, bytes], None],
        events: Listener,
    ) -> None:
        self._program = program
        self._threads = threads
        self._as_json = as_json
        self._shown = shown
        self._selector = selector
        self._slots = slots
        self._write = write
        self._events = events
        self.newest: dict[int, RankProcess] = {}
        # rank -> environment and generation to start once the old process is gone
        self._waiting: dict[int, tuple[dict[str, str], int]] = {}
        self._death_fds: dict[int, int] = {}  # by pid
        self._oom_kills = OomKills()

    def alive(self) -> list[RankProcess]:
        """Processes that have not been reaped."""
        return [process for process in self.newest.values() if process.ending is None]

    def states(self) -> dict[int, RankState]:
        """What the coordinator must know about each rank, after messages may have been lost."""
        generations = {rank: process.generation for rank, process in self.newest.items()}
        states = {rank: self.newest[rank].state_in(number) for rank, number in generations.items()}
        waiting = {rank: RankState(generation=number) for rank, (_, number) in self._waiting.items()}
        return states | waiting

    def endings(self) -> list[Ending]:
        """How the newest process of each rank ended, if it did."""
        return [process.ending for process in self.newest.values() if process.ending]

    @property
    def deadline(self) -> float | None:
        """When `tick` has something to do."""
        stuck = (process.stuck_at for process in self.alive())
        kill = (process.leaving.kill_at for process in self.alive() if process.leaving)
        return min((at for at in (*stuck, *kill) if at is not None), default=None)

    def start(
        self,
        rank: int,
        env: dict[str, str],
        *,
        generation: int,
        gracefully: bool = False,
        step_s: float = 0.0,
    ) -> None:
        """Fork the rank, after stopping its current process if there is one.

        gracefully  that process may save first, in agreement with all other ranks
        step_s      duration of a step, as far as known
        """
        old = self.newest.get(rank)
        if old and old.ending is None:
            self._waiting[rank] = (env, generation)
            self._end(old, gracefully=gracefully, step_s=step_s)
            return
        others = [fd for other, fds in self._slots.items() if other != rank for fd in fds]
        others += [fd for other in self.alive() for fd in (other.orders, other.stacks)]
        process = RankProcess.fork(
            self._program,
            env=env,
            generation=generation,
            threads=self._threads,
            as_json=self._as_json,
            slots=self._slots.get(rank, ()),
            inherited=[*others, *(key.fd for key in self._selector.get_map().values())],
        )
        self.newest[rank] = process
        self._events.started(process)
        for fd in process.streams:
            self._selector.register(fd, selectors.EVENT_READ, lambda fd=fd: self._on_output(process, fd))
        assert process.reports is not None  # it has just been opened
        self._selector.register(process.reports, selectors.EVENT_READ, lambda: self._on_reports(process))
        self._watch_death(process)

    def end(self, *, gracefully: bool, step_s: float) -> None:
        """No rank of this pod is needed: end all as `start` does, and start no more."""
        self._waiting.clear()
        for process in self.alive():
            self._end(process, gracefully=gracefully, step_s=step_s)

    def show_stacks(self, process: RankProcess, stacks: str) -> None:
        """Log the stacks with the rank's number in front of each line."""
        lines = LogLines(rank=process.rank, as_json=self._as_json)
        self._show(process, 2, lines.feed(stacks.encode()) + lines.end())

    def stop(self, number: signal.Signals) -> None:
        """The pod was asked to terminate: signal every rank and start no more."""
        for rank in self._waiting:
            self.newest[rank].leaving = None  # it has the time that the pod has
        self._waiting.clear()
        for process in self.alive():
            process.must_stop = process.must_stop or number == signal.SIGTERM
            process.signal(number)

    def kill(self) -> None:
        """Kill every rank and all that they started, and start no more."""
        self._waiting.clear()
        for process in self.alive():
            process.kill()

    def shut_down(self) -> None:
        """The job failed: kill ranks that use dtj, which only wait; others may still print their error."""
        self._waiting.clear()
        for process in self.alive():
            if process.uses_dtj:
                process.kill()
            else:
                process.leaving = Leaving(time.monotonic() + _TERM_GRACE_S)

    def leave(self, failed: RankProcess) -> None:
        """No rank can run here because of this one, which reported a failure and may still exit by itself."""
        self._waiting.clear()
        for process in self.alive():
            if process is not failed:
                process.kill()
        failed.leaving = Leaving(time.monotonic() + _TERM_GRACE_S)

    def tick(self) -> None:
        """Time has passed."""
        now = time.monotonic()
        self._oom_kills.forget_old(now)
        for process in self.alive():
            if process.stuck_at is not None and now >= process.stuck_at:
                self._give_up(process)
        leaving = [(process, process.leaving) for process in self.alive() if process.leaving]
        if all(now < each.kill_at for _, each in leaving):
            return
        working = [process for process, _ in leaving if process.works()]
        for process, each in leaving:
            if working and now < each.latest:  # the other ranks may wait for the one that works
                each.kill_at = min(now + each.every_s, each.latest)
            elif now >= each.kill_at:
                if each.latest and process.uses_dtj:
                    self._events.cut_off(process)
                process.kill()

    def reaped(self, pid: int, code: int) -> None:
        """A child of the agent exited; ignored if it was not a rank."""
        for process in self.alive():
            if process.pid == pid:
                self._finish(process, code)

    def _give_up(self, process: RankProcess) -> None:
        """The kernel does not end a killed rank: treat it as ended."""
        process.mark_stuck()
        self._events.stuck(process)
        self._finish(process, -signal.SIGKILL)

    def _watch_death(self, process: RankProcess) -> None:
        """Watch a pidfd; if that is refused, SIGCHLD has to do, which does not keep the order of deaths."""
        try:
            fd = os.pidfd_open(process.pid)
        except AttributeError:  # Python without it
            return
        except OSError as error:
            if error.errno in _NO_PIDFD:
                return
            raise
        self._death_fds[process.pid] = fd
        self._selector.register(fd, selectors.EVENT_READ, lambda: self._on_death(process))

    def _on_death(self, process: RankProcess) -> None:
        pid, status = os.waitpid(process.pid, os.WNOHANG)
        if pid:  # else a debugger is notified first
            self._finish(process, os.waitstatus_to_exitcode(status))

    def _end(self, process: RankProcess, *, gracefully: bool, step_s: float) -> None:
        """Stop the old process. Killing a dtj program is safe: its checkpoints are atomic."""
        if process.uses_dtj and not gracefully:
            process.kill()
            return
        now, save_s = time.monotonic(), max(_SAVE_S, 2 * step_s)
        kill_at = now + (save_s if process.uses_dtj else _TERM_GRACE_S)
        process.leaving = Leaving(
            process.leaving.kill_at if process.leaving else kill_at,
            latest=now + save_s + _LONGEST_SAVE_S if gracefully else 0.0,
            every_s=save_s,
            signs=process.heartbeat.signs,
        )
        process.signal(signal.SIGTERM, on_behalf_of_agent=True)

    def _finish(self, process: RankProcess, code: int) -> None:
        if process.pid in self._death_fds:
            self._close(self._death_fds.pop(process.pid))
        process.kill_group()
        for fd, (target, _) in list(process.streams.items()):
            self._show(process, target, process.last_lines(fd))
            self._forget(process, fd)
        self._on_reports(process)
        if process.reports is not None:
            self._forget(process, process.reports)
        # One per death. If a data worker was killed, the rank itself fails with an error instead.
        if self._oom_kills.take() and code == -signal.SIGKILL and not process.killed:
            process.mark_oom_killed(self._oom_kills.limit())
        process.finish(code)
        self._events.ended(process, self.newest.values())
        if process.rank in self._waiting:
            env, generation = self._waiting.pop(process.rank)
            self.start(process.rank, env, generation=generation)

    def _on_output(self, process: RankProcess, fd: int) -> None:
        target, _ = process.streams[fd]
        text, is_over = process.read_lines(fd)
        self._show(process, target, text)
        if is_over:
            self._forget(process, fd)

    def _on_reports(self, process: RankProcess) -> None:
        for fd in list(process.streams):  # what it wrote before it reported its failure belongs to it
            self._on_output(process, fd)
        reports, is_over = process.read_reports()
        for fields in reports:
            self._events.reported(process, fields)
        if is_over and process.reports is not None:
            self._forget(process, process.reports)

    def _forget(self, process: RankProcess, fd: int) -> None:
        """A pipe of the rank has ended; its fd number may be reused by another rank from now on."""
        process.streams.pop(fd, None)
        if fd == process.reports:
            process.reports = None
        self._close(fd)

    def _close(self, fd: int) -> None:
        self._selector.unregister(fd)
        os.close(fd)

    def _show(self, process: RankProcess, target: int, text: bytes) -> None:
        if text and (self._shown is None or process.rank in self._shown):
            self._write(target, text)


def soonest(times: Iterable[float | None]) -> float | None:
    """Seconds until the earliest of these time.monotonic() times; None if there is none."""
    known = [at for at in times if at is not None]
    return max(0.0, min(known) - time.monotonic()) if known else None
