"""Looks twice at every rank of this pod, some seconds apart: its stack each time, and its work in between.

request -> stacks -> usage -> `looks_s` later -> usage -> stacks -> probes for verdict.py
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

from dtj.agent.rank.process import RankProcess
from dtj.agent.rank.process_usage import Usage, processes
from dtj.agent.replica.activity import CPU_SHARE, IO_BYTES_PER_S, ActivityReader, without_stacks
from dtj.agent.replica.stacks import RankStacks, Stacks
from dtj.agent.wire.probe import POLLS, USES_CPU, USES_CPU_AT_TIMES, Probe

# The kernel counts in hundredths of a second.
_CPU_LEAST_S = 0.02


@dataclass(kw_only=True)
class _Looks:
    """An examination of the ranks in progress.

    first     stacks of the first look, by pid
    usage     since the first look, by pid
    used_at   when that was read
    asleep_s  before the first look, by pid
    """

    looks_s: float
    then: Callable[[dict[int, Probe], list[RankStacks]], None]
    asleep_s: dict[int, float]
    first: dict[int, RankStacks] | None = None
    usage: dict[int, Usage] | None = None
    used_at: float = 0.0


class Looks:
    """At most one examination is in progress; a new request replaces it."""

    def __init__(
        self, stacks: Stacks, activity: ActivityReader, alive: Callable[[], list[RankProcess]]
    ) -> None:
        self._stacks = stacks
        self._activity = activity
        self._alive = alive
        self._looks: _Looks | None = None
        self.deadline: float | None = None  # of the second look

    def request(self, looks_s: float, then: Callable[[dict[int, Probe], list[RankStacks]], None]) -> None:
        """Call `then` with the probes of all ranks that are alive at the second look, and their stacks."""
        alive = self._alive()
        asleep_s = {p.pid: self._activity.asleep_s(p) for p in alive}  # before the signal wakes them
        looks = self._looks = _Looks(looks_s=looks_s, then=then, asleep_s=asleep_s)
        self.deadline = None
        self._stacks.request(alive, lambda found: self._on_first(looks, found))

    def tick(self) -> None:
        """Time has passed."""
        looks, now = self._looks, time.monotonic()
        if looks is None or self.deadline is None or now < self.deadline:
            return
        self.deadline = None
        alive, before = self._alive(), looks.usage or {}
        after, elapsed_s = _usage(alive), now - looks.used_at
        does = {
            pid: work_between(before[pid], usage, elapsed_s=elapsed_s)
            for pid, usage in after.items()
            if pid in before
        }
        stopped = {pid: min(usage.stopped - {pid}, default=0) for pid, usage in after.items()}
        self._stacks.request(alive, lambda found: self._on_second(looks, found, does, stopped))

    def _on_first(self, looks: _Looks, found: list[RankStacks]) -> None:
        if looks is self._looks:
            looks.first = {one.process.pid: one for one in found}
            looks.usage, looks.used_at = _usage(self._alive()), time.monotonic()
            self.deadline = looks.used_at + looks.looks_s

    def _on_second(
        self, looks: _Looks, found: list[RankStacks], does: dict[int, str], stopped: dict[int, int]
    ) -> None:
        if looks is not self._looks:
            return
        self._looks = None
        probes, first = {}, looks.first or {}
        for one in found:
            pid = one.process.pid
            before = first.get(pid)
            probes[one.process.rank] = Probe(
                place=one.place,
                moved=before is not None and before.place.path != one.place.path,
                does=does.get(pid) or _without_processor(one),
                responds=one.responds,
                is_stopped=one.is_stopped,
                stopped=stopped.get(pid, 0),
                asleep_s=looks.asleep_s.get(pid, 0.0),
                collectives=one.collectives,
            )
        looks.then(probes, found)


def work_between(before: Usage, after: Usage, *, elapsed_s: float) -> str:
    """What a rank and its processes did, in words for the user; empty if next to nothing."""
    if before.runnable & after.runnable:  # it, or its compiler; it may get next to no processor time
        return USES_CPU
    if after.cpu_s - before.cpu_s > _CPU_LEAST_S + CPU_SHARE * elapsed_s:
        return USES_CPU_AT_TIMES if after.wakeups > before.wakeups else USES_CPU
    if after.io_bytes - before.io_bytes > IO_BYTES_PER_S * elapsed_s:
        return "reads or writes"
    if before.is_busy and after.is_busy:
        return "waits for a disk"
    if after.pids - before.pids:
        return "starts processes"
    return POLLS if after.wakeups > before.wakeups else ""


def _without_processor(one: RankStacks) -> str:
    """A rank that does not respond because it gets next to no processor time is at work."""
    return USES_CPU if one.is_runnable and not one.responds else ""


def _usage(alive: list[RankProcess]) -> dict[int, Usage]:
    table = processes()
    return {p.pid: usage for p in alive if (usage := without_stacks(p, table))}
