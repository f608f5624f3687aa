"""Whether ranks that have not done a step yet do anything at all, as the kernel sees it.

Imports, downloads, compilers and the loading of data bring no steps, but they use CPU time, read or write,
or start processes; so do whatever processes the rank has started. Who waits in vain does none of it.
"""

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from dtj.agent.process_usage import ProcessTable, Usage, processes, usage_of
from dtj.agent.rank_process import RankProcess

_POLL_S = 2.0
# A rank that was asked for its stacks has written them by then.
_STACKS_S = 1.0
# Waiting with a look at the clock now and then costs less than this share of a CPU, even in many threads.
_CPU_SHARE = 0.001
_CPU_LEAST_S = 0.03  # the kernel counts in hundredths
# A process that waits for work from its rank looks up every few seconds; one at work, far more often.
_WAKEUPS_PER_S = 1.0
_WAKEUPS_LEAST = 10


class Activity(NamedTuple):
    """That a rank without a step is at work, or that its process was stopped or goes on."""

    generation: int
    is_stopped: bool


@dataclass(kw_only=True)
class _Seen:
    """A rank when it was last looked at.

    base      what it had used, at `base_at`, when it last did something
    wakeups   of its main thread, which was last awake at `awake_at`
    """

    at: float
    base: Usage
    base_at: float
    is_stopped: bool
    wakeups: int
    awake_at: float


class ActivityReader:
    """Remembers what each process had used; ranks that bring steps are of no interest."""

    def __init__(self) -> None:
        self._seen: dict[int, _Seen] = {}  # by pid
        self._poll_at = time.monotonic() + _POLL_S

    def tick(self, alive: Iterable[RankProcess]) -> dict[int, Activity]:
        """Where it is time: the ranks that did something; of others only that they were stopped or go on."""
        now = time.monotonic()
        if now < self._poll_at:
            return {}
        self._poll_at = now + _POLL_S
        starting = [process for process in alive if process.heartbeat.step is None]
        self._seen = {p.pid: self._seen[p.pid] for p in starting if p.pid in self._seen}
        if not starting:
            return {}
        table = processes()
        return {p.rank: found for p in starting if (found := self._check(p, table, now))}

    def asleep_s(self, process: RankProcess) -> float:
        """Seconds for which its main thread has not been awake; 0 where nobody knows."""
        seen = self._seen.get(process.pid)
        return time.monotonic() - seen.awake_at if seen else 0.0

    def forget(self, process: RankProcess) -> None:
        """What is known of it is to be told anew."""
        self._seen.pop(process.pid, None)

    def _check(self, process: RankProcess, table: ProcessTable, now: float) -> Activity | None:
        usage = usage_of(process.pid, table)
        if usage is None or now - process.stacks_requested_at < _STACKS_S:
            return None
        is_stopped = table.known[process.pid].state == "T"
        seen = self._seen.get(process.pid)
        if seen is None:
            self._seen[process.pid] = _Seen(
                at=now, base=usage, base_at=now, is_stopped=is_stopped, wakeups=usage.wakeups, awake_at=now
            )
            return Activity(process.generation, is_stopped)
        if process.stacks_requested_at > seen.at:  # what it wrote, and that it woke up for it, is our doing
            seen.base, seen.wakeups = seen.base._replace(io_bytes=usage.io_bytes), usage.wakeups
        if usage.wakeups != seen.wakeups:
            seen.wakeups, seen.awake_at = usage.wakeups, now
        has_changed = is_stopped != seen.is_stopped
        seen.at, seen.is_stopped = now, is_stopped
        if not has_changed and not did_something(seen.base, usage, elapsed_s=now - seen.base_at):
            return None
        seen.base, seen.base_at = usage, now
        return Activity(process.generation, is_stopped)


def did_something(before: Usage, current: Usage, *, elapsed_s: float) -> bool:
    """More than to wait and look at the clock current and then."""
    return (
        current.is_busy
        or current.pids != before.pids
        or current.io_bytes != before.io_bytes
        or current.cpu_s - before.cpu_s > _CPU_LEAST_S + _CPU_SHARE * elapsed_s
        or current.other_wakeups - before.other_wakeups > _WAKEUPS_LEAST + _WAKEUPS_PER_S * elapsed_s
    )
