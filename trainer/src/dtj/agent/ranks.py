"""The ranks of this node: forked, read, signalled, buried and, where asked, forked again.

It knows processes and pipes; which rank is to run when is `launch.py`'s business.
"""

import os
import selectors
import signal
import time
from collections.abc import Iterable

from dtj.agent import rank as rank_process
from dtj.agent.child import Child
from dtj.agent.news import News
from dtj.agent.oom import OomKills
from dtj.agent.report import Ending
from dtj.agent.screen import Screen

# A script may want to tidy up when it is restarted; one that ignores SIGTERM must not hold up the others.
_PATIENCE_S = 5.0
# One that is to save before may take longer.
_SAVE_S = 60.0


class Ranks:
    """At most one process a rank; the newest is what counts."""

    def __init__(
        self,
        program: rank_process.Program,
        *,
        threads: int,
        as_json: bool,
        shown: frozenset[int] | None,
        selector: selectors.BaseSelector,
        screen: Screen,
        events: News,
    ) -> None:
        self._program = program
        self._threads = threads
        self._as_json = as_json
        self._shown = shown
        self._selector = selector
        self._screen = screen
        self._events = events
        self.newest: dict[int, Child] = {}
        self._waiting: dict[
            int, tuple[dict[str, str], int]
        ] = {}  # rank -> what to start once the old one is gone
        self._death_fds: dict[int, int] = {}  # by pid
        self._oom_kills = OomKills()
        self._kill_at: float | None = None
        self._is_over = False

    def living(self) -> list[Child]:
        """Those whose process has not been buried."""
        return [child for child in self.newest.values() if child.ending is None]

    def endings(self) -> list[Ending]:
        """How the newest process of each rank ended, where it did."""
        return [child.ending for child in self.newest.values() if child.ending]

    @property
    def deadline(self) -> float | None:
        """When `tick` has something to do."""
        return self._kill_at

    def start(self, rank: int, env: dict[str, str], *, generation: int, gently: bool = False) -> None:
        """Fork the rank, once a process of its that still lives has been ended.

        gently  it may save before, in agreement with all others
        """
        old = self.newest.get(rank)
        if old and old.ending is None:
            self._waiting[rank] = (env, generation)
            self._end(old, gently=gently)
            return
        child = Child.fork(
            self._program,
            env=env,
            generation=generation,
            threads=self._threads,
            as_json=self._as_json,
            inherited=[key.fd for key in self._selector.get_map().values()],
        )
        self.newest[rank] = child
        self._events.started(child)
        for fd in child.streams:
            self._selector.register(fd, selectors.EVENT_READ, lambda fd=fd: self._on_output(child, fd))
        self._selector.register(child.reports, selectors.EVENT_READ, lambda: self._on_reports(child))
        self._watch_death(child)

    def show_stacks(self, child: Child, stacks: str) -> None:
        """Put them into the log, line by line under the rank's name."""
        self._show(child, *child.dressed(stacks))

    def signal(self, number: signal.Signals) -> None:
        """To every rank."""
        for child in self.living():
            child.signal(number)

    def kill(self) -> None:
        """Every rank and all that they started; nothing waits to be started any more."""
        self._waiting.clear()
        for child in self.living():
            child.kill()

    def wind_up(self) -> None:
        """The job is over: those that wait for others end now, the rest may still say something."""
        self._waiting.clear()
        for child in self.living():
            if child.uses_dtj:
                child.kill()
        self._is_over = True
        self._kill_at = time.monotonic() + _PATIENCE_S

    def tick(self) -> None:
        """Time has passed."""
        if self._kill_at is not None and time.monotonic() >= self._kill_at:
            self._kill_at = None
            for child in self.living():
                if self._is_over or child.rank in self._waiting:
                    child.kill()

    def reaped(self, pid: int, code: int) -> None:
        """A child of the agent ended; nothing happens where it was no rank."""
        for child in self.living():
            if child.pid == pid:
                self._bury(child, code)

    def _watch_death(self, child: Child) -> None:
        """Deaths come in their order, also where several are heard of at once; signals do not tell it."""
        if not hasattr(os, "pidfd_open"):
            return
        fd = os.pidfd_open(child.pid)
        self._death_fds[child.pid] = fd
        self._selector.register(fd, selectors.EVENT_READ, lambda: self._on_death(child))

    def _on_death(self, child: Child) -> None:
        pid, status = os.waitpid(child.pid, os.WNOHANG)
        if pid:
            self._bury(child, os.waitstatus_to_exitcode(status))

    def _end(self, child: Child, *, gently: bool) -> None:
        """Make place. Programs of dtj have nothing to lose (a checkpoint is whole or not there)."""
        if child.uses_dtj and not gently:
            child.kill()
        else:
            child.signal(signal.SIGTERM, on_behalf_of_agent=True)
            patience = _SAVE_S if child.uses_dtj else _PATIENCE_S
            self._kill_at = self._kill_at or time.monotonic() + patience

    def _bury(self, child: Child, code: int) -> None:
        if child.pid in self._death_fds:
            self._forget(self._death_fds.pop(child.pid))
        child.sweep()
        for fd in child.streams:
            if fd in self._selector.get_map():
                self._show(child, child.streams[fd][0], child.last_lines(fd))
                self._forget(fd)
        if child.reports in self._selector.get_map():
            self._on_reports(child)
        if child.reports in self._selector.get_map():
            self._forget(child.reports)
        # One for each death: where it was a worker of the rank, the rank dies of that in its own way.
        if self._oom_kills.take() and code == -signal.SIGKILL and not child.killed:
            child.lacked_memory()
        child.bury(code)
        self._events.ended(child)
        if child.rank in self._waiting:
            env, generation = self._waiting.pop(child.rank)
            self.start(child.rank, env, generation=generation)

    def _on_output(self, child: Child, fd: int) -> None:
        text, is_over = child.read_lines(fd)
        self._show(child, child.streams[fd][0], text)
        if is_over:
            self._forget(fd)

    def _on_reports(self, child: Child) -> None:
        reports, is_over = child.read_reports()
        for fields in reports:
            self._events.reported(child, fields)
        if is_over:
            self._forget(child.reports)

    def _forget(self, fd: int) -> None:
        self._selector.unregister(fd)
        os.close(fd)

    def _show(self, child: Child, target: int, text: bytes) -> None:
        if text and (self._shown is None or child.rank in self._shown):
            self._screen.write(target, text)


def soonest(times: Iterable[float | None]) -> float | None:
    """Seconds from now until the first of these times of time.monotonic(), None where there is none."""
    known = [at for at in times if at is not None]
    return max(0.0, min(known) - time.monotonic()) if known else None
