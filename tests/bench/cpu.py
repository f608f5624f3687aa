"""Which processes use the processors while a benchmark measures: its own, by program, and all others."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_IDLE = (3, 4)  # columns of the first line of /proc/stat: idle, and waiting for a disk
_GUEST = 8  # from here on, what earlier columns have already


@dataclass(frozen=True, kw_only=True)
class Used:
    """CPU seconds, until a moment or between two.

    own    of this process (named "benchmark") and of all that it has started: program -> seconds
    all_s  of all processes of the machine; time that a hypervisor gave to other machines counts too
    """

    own: Mapping[str, float]
    all_s: float

    def __sub__(self, before: Used) -> Used:
        own = {name: spent - before.own.get(name, 0.0) for name, spent in self.own.items()}
        return Used(own=own, all_s=self.all_s - before.all_s)

    @property
    def others_s(self) -> float:
        """Of processes that have nothing to do with the benchmark."""
        return max(0.0, self.all_s - sum(self.own.values()))


def used() -> Used:
    """Return what has been used until now."""
    parents, spent, names = {}, {}, {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            stat = (folder / "stat").read_text()
        except OSError:  # it has ended
            continue
        pid = int(folder.name)
        names[pid] = stat[stat.index("(") + 1 : stat.rindex(")")].rstrip("-")  # the kernel cuts long names
        rest = stat[stat.rindex(")") + 2 :].split()
        parents[pid], spent[pid] = int(rest[1]), (int(rest[11]) + int(rest[12])) / TICKS_PER_S
    own: dict[str, float] = defaultdict(float)
    for pid, seconds in spent.items():
        if _descends(pid, os.getpid(), parents):
            own["benchmark" if pid == os.getpid() else names[pid]] += seconds
    return Used(own=own, all_s=busy_s(Path("/proc/stat").read_text()))


def busy_s(stat: str) -> float:
    """Return the seconds in which the processors were busy, from the text of /proc/stat."""
    columns = stat.partition("\n")[0].split()[1:]
    return sum(int(each) for at, each in enumerate(columns[:_GUEST]) if at not in _IDLE) / TICKS_PER_S


def _descends(pid: int, ancestor: int, parents: dict[int, int]) -> bool:
    while pid not in (ancestor, 0):
        pid = parents.get(pid, 0)
    return pid == ancestor
