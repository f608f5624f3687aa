"""The ranks of this node: forked, read, signalled, reaped and, where asked, forked again.

It knows processes and pipes; which rank is to run when is `orders.py`'s business.
"""

import os
import selectors
import signal
import time
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from dtj.agent import rank_main
from dtj.agent.oom import OomKills
from dtj.agent.outcome import Ending
from dtj.agent.rank_process import RankProcess

# A script may want to tidy up when it is restarted; one that ignores SIGTERM must not hold up the others.
_TERM_GRACE_S = 5.0
# One that is to save before may take longer, and once it is at it that long: the disk decides.
_SAVE_S = 60.0
_LONGEST_SAVE_S = 600.0


class Listener(Protocol):
    """Who is told what happens to the ranks, see rank_events.py."""

    def started(self, process: RankProcess) -> None: ...
    def reported(self, process: RankProcess, fields: dict[str, Any]) -> None: ...
    def ended(self, process: RankProcess, beside: Iterable[RankProcess]) -> None: ...


class Supervisor:
    """At most one process a rank; the newest is what counts.

    write   bytes of the ranks' output -> the agent's own stdout (1) or stderr (2)
    events  is told of each rank
    """

    def __init__(
        self,
        program: rank_main.Program,
        *,
        threads: int,
        as_json: bool,
        shown: frozenset[int] | None,
        selector: selectors.BaseSelector,
        write: Callable[[int, bytes], None],
        events: Listener,
    ) -> None:
        self._program = program
        self._threads = threads
        self._as_json = as_json
        self._shown = shown
        self._selector = selector
        self._write = write
        self._events = events
        self.newest: dict[int, RankProcess] = {}
        # rank -> what to start once the old one is gone: environment and generation
        self._waiting: dict[int, tuple[dict[str, str], int]] = {}
        self._death_fds: dict[int, int] = {}  # by pid
        self._oom_kills = OomKills()
        self._kill_at: float | None = None
        self._save_until = 0.0
        self._is_over = False

    def alive(self) -> list[RankProcess]:
        """Those whose process has not been reaped."""
        return [process for process in self.newest.values() if process.ending is None]

    def endings(self) -> list[Ending]:
        """How the newest process of each rank ended, where it did."""
        return [process.ending for process in self.newest.values() if process.ending]

    @property
    def deadline(self) -> float | None:
        """When `tick` has something to do."""
        return self._kill_at

    def start(self, rank: int, env: dict[str, str], *, generation: int, gracefully: bool = False) -> None:
        """Fork the rank, once a process of its that still lives has been ended.

        gracefully  it may save before, in agreement with all others
        """
        old = self.newest.get(rank)
        if old and old.ending is None:
            self._waiting[rank] = (env, generation)
            self._end(old, gracefully=gracefully)
            return
        process = RankProcess.fork(
            self._program,
            env=env,
            generation=generation,
            threads=self._threads,
            as_json=self._as_json,
            inherited=[key.fd for key in self._selector.get_map().values()],
        )
        self.newest[rank] = process
        self._events.started(process)
        for fd in process.streams:
            self._selector.register(fd, selectors.EVENT_READ, lambda fd=fd: self._on_output(process, fd))
        assert process.reports is not None  # it has just been opened
        self._selector.register(process.reports, selectors.EVENT_READ, lambda: self._on_reports(process))
        self._watch_death(process)

    def show_stacks(self, process: RankProcess, stacks: str) -> None:
        """Put them into the log, line by line under the rank's name."""
        self._show(process, *process.prefixed(stacks))

    def stop(self, number: signal.Signals) -> None:
        """The node was asked to end: so is every rank, and nothing waits to be started any more."""
        self._waiting.clear()
        for process in self.alive():
            process.signal(number)

    def kill(self) -> None:
        """Every rank and all that they started; nothing waits to be started any more."""
        self._waiting.clear()
        self._kill_at = None
        for process in self.alive():
            process.kill()

    def shut_down(self) -> None:
        """The job is over: those that wait for others end now, the rest may still say something."""
        self._waiting.clear()
        for process in self.alive():
            if process.uses_dtj:
                process.kill()
        self._is_over = True
        self._save_until = 0.0
        self._kill_at = time.monotonic() + _TERM_GRACE_S

    def tick(self) -> None:
        """Time has passed."""
        now = time.monotonic()
        if self._kill_at is None or now < self._kill_at:
            return
        late = [each for each in self.alive() if self._is_over or each.rank in self._waiting]
        if now < self._save_until and any(process.heartbeat.is_paused for process in late):
            self._kill_at = now + _TERM_GRACE_S
            return
        self._kill_at = None
        for process in late:
            process.kill()

    def reaped(self, pid: int, code: int) -> None:
        """A child of the agent ended; nothing happens where it was no rank."""
        for process in self.alive():
            if process.pid == pid:
                self._finish(process, code)

    def _watch_death(self, process: RankProcess) -> None:
        """Deaths come in their order, also where several are heard of at once; signals do not tell it."""
        if not hasattr(os, "pidfd_open"):
            return
        fd = os.pidfd_open(process.pid)
        self._death_fds[process.pid] = fd
        self._selector.register(fd, selectors.EVENT_READ, lambda: self._on_death(process))

    def _on_death(self, process: RankProcess) -> None:
        pid, status = os.waitpid(process.pid, os.WNOHANG)
        if pid:  # else a debugger hears of it first
            self._finish(process, os.waitstatus_to_exitcode(status))

    def _end(self, process: RankProcess, *, gracefully: bool) -> None:
        """Make place. Programs of dtj have nothing to lose (a checkpoint is whole or not there)."""
        if process.uses_dtj and not gracefully:
            process.kill()
        else:
            process.signal(signal.SIGTERM, on_behalf_of_agent=True)
            now = time.monotonic()
            grace_s = _SAVE_S if process.uses_dtj else _TERM_GRACE_S
            self._kill_at = self._kill_at or now + grace_s
            self._save_until = now + _LONGEST_SAVE_S if gracefully else 0.0

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
        # One for each death: where it was a worker of the rank, the rank dies of that in its own way.
        if self._oom_kills.take() and code == -signal.SIGKILL and not process.killed:
            process.mark_oom_killed()
        process.finish(code)
        self._events.ended(process, self.newest.values())
        if process.rank in self._waiting:
            env, generation = self._waiting.pop(process.rank)
            if not self._waiting:
                self._kill_at = None  # the next stop has a time of its own
            self.start(process.rank, env, generation=generation)

    def _on_output(self, process: RankProcess, fd: int) -> None:
        target, _ = process.streams[fd]
        text, is_over = process.read_lines(fd)
        self._show(process, target, text)
        if is_over:
            self._forget(process, fd)

    def _on_reports(self, process: RankProcess) -> None:
        reports, is_over = process.read_reports()
        for fields in reports:
            self._events.reported(process, fields)
        if is_over and process.reports is not None:
            self._forget(process, process.reports)

    def _forget(self, process: RankProcess, fd: int) -> None:
        """A pipe of the rank is over. The number may be another rank's from here on."""
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
    """Seconds from now until the first of these times of time.monotonic(), None where there is none."""
    known = [at for at in times if at is not None]
    return max(0.0, min(known) - time.monotonic()) if known else None
