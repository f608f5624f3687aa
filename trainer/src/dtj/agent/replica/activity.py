"""Does a rank that has not completed a step yet do anything at all? Reads the kernel's counters.

Imports, downloads, compilers and data loading complete no steps, but they (or the processes that the rank
has started) use CPU time, read or write, or start processes. A stuck rank does next to none of these: threads
of its libraries poll, and samplers of metrics write a few lines. So there are limits for a window of some
seconds: above what such threads do, but below a burst of work, however long it was quiet before.
"""

import time
from collections.abc import Iterable
from dataclasses import dataclass

from dtj.agent.rank.process import RankProcess
from dtj.agent.rank.process_usage import ProcessTable, Usage, processes, usage_of
from dtj.agent.wire.signs import Activity

_POLL_S = 2.0
# Within this time after a request, a rank has written its stacks. Reading its usage waits for that, but not
# for longer than this: a client may ask for the stacks again and again.
_STACKS_S = 1.0
_LONGEST_WAIT_S = 10.0
_STACKS_CPU_S = 0.01  # to write the stacks once
_WINDOW_S = 10.0
# Threads of libraries poll also while the rank is stuck. The costliest is gloo's: one for each group wakes up
# every 10 ms, for 0.12 to 0.25 % of a CPU (NCCL's every 100 ms), so eight groups are below this limit. A rank
# at work is above it even on a CPU that fifty others share; below that, verdict.py sees that it wants to run.
CPU_SHARE = 0.02
_CPU_LEAST_S = 0.03  # the kernel counts in hundredths of a second
# Measured: wandb 5 kB/s, most of it at once every 16 s; a thread that reads all of /proc each second 50 kB/s.
IO_BYTES_PER_S = 100_000
# A worker process that waits for its rank wakes up every few seconds; a busy one wakes up far more often.
_WAKEUPS_PER_S = 2.0


@dataclass(kw_only=True)
class _Seen:
    """A rank when it was last read.

    base      its usage at `base_at`, when it was last active or the present window began
    wakeups   wake-ups of its main thread, which was last awake at `awake_at`
    """

    at: float
    base: Usage
    base_at: float
    is_stopped: bool
    wakeups: int
    awake_at: float


class ActivityReader:
    """Remembers the usage of each process; skips ranks that complete steps."""

    def __init__(self) -> None:
        self._seen: dict[int, _Seen] = {}  # by pid
        self._poll_at = time.monotonic() + _POLL_S

    def tick(self, alive: Iterable[RankProcess]) -> dict[int, Activity]:
        """If a poll is due: ranks that were active, and ranks whose process was stopped or continued."""
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
        """Seconds since its main thread was last awake; 0 if unknown."""
        seen = self._seen.get(process.pid)
        return time.monotonic() - seen.awake_at if seen else 0.0

    def forget(self, process: RankProcess) -> None:
        """Report its activity again from the start."""
        self._seen.pop(process.pid, None)

    def _check(self, process: RankProcess, table: ProcessTable, now: float) -> Activity | None:
        seen = self._seen.get(process.pid)
        is_writing = now - process.stacks_requested_at < _STACKS_S
        if seen and is_writing and now - seen.at < _LONGEST_WAIT_S:
            return None
        usage = without_stacks(process, table)
        if usage is None:
            return None
        is_stopped = table.known[process.pid].state == "T"
        if seen is None:
            self._seen[process.pid] = _Seen(
                at=now, base=usage, base_at=now, is_stopped=is_stopped, wakeups=usage.wakeups, awake_at=now
            )
            return Activity(process.generation, is_stopped)
        if usage.wakeups > seen.wakeups:
            seen.awake_at = now
        seen.wakeups = usage.wakeups
        has_changed = is_stopped != seen.is_stopped
        seen.at, seen.is_stopped = now, is_stopped
        elapsed_s = now - seen.base_at
        is_active = has_changed or did_something(seen.base, usage, elapsed_s=elapsed_s)
        if is_active or elapsed_s >= _WINDOW_S:
            seen.base, seen.base_at = usage, now
        return Activity(process.generation, is_stopped) if is_active else None


def without_stacks(process: RankProcess, table: ProcessTable) -> Usage | None:
    """What a rank has used, apart from writing its stacks; None if it cannot be read, or writes them now."""
    written = process.stacks_written()
    usage = usage_of(process.pid, table)
    if usage is None or process.stacks_written() != written:
        return None
    return usage._replace(
        io_bytes=usage.io_bytes - written,
        wakeups=usage.wakeups - process.stacks_insisted,
        cpu_s=usage.cpu_s - _STACKS_CPU_S * process.stacks_requests,
    )


def did_something(before: Usage, current: Usage, *, elapsed_s: float) -> bool:
    """Whether the rank, or a process of it, did more than poll with a timeout and sample metrics."""
    window_s = max(elapsed_s, _WINDOW_S)  # less time does not lower the limits: samplers work in bursts too
    wakeups = before.other_wakeups
    return (
        current.is_busy
        or current.pids != before.pids
        or current.io_bytes - before.io_bytes > IO_BYTES_PER_S * window_s
        or current.cpu_s - before.cpu_s > _CPU_LEAST_S + CPU_SHARE * window_s
        or any(
            n - wakeups.get(pid, n) > _WAKEUPS_PER_S * window_s for pid, n in current.other_wakeups.items()
        )
    )
