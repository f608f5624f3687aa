"""Work of the ranks on their steps -> the straggler that keeps the others waiting. Pure.

Compares the ranks with each other over windows of a few steps: if all are slow, none is a straggler. One slow
window may be an evaluation, a full disk or another process; two in a row name the rank.
"""

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

# A window has at least this many steps of every rank and this length; two windows fit into 20 steps.
WINDOW_STEPS = 6
MIN_WINDOW_S = 0.5
# A straggler's work per step exceeds the others' by this factor, until it falls below the second one.
SLOW_RATIO = 1.5
RECOVERED_RATIO = 1.25
# Minimum loss per step; less is noise of a busy machine.
MIN_LOSS_S = 0.005


@dataclass(frozen=True, kw_only=True)
class Straggler:
    """A rank whose own work on a step takes `ratio` times that of the others."""

    rank: int
    ratio: float


def slowest(work_s: Mapping[int, float]) -> Straggler | None:
    """The rank with the most work per step, compared with the median; None if the difference is too small."""
    if len(work_s) < 2:
        return None
    rank = max(work_s, key=lambda r: (work_s[r], -r))
    usual = statistics.median(work for other, work in work_s.items() if other != rank)
    if usual <= 0 or work_s[rank] - usual < MIN_LOSS_S:
        return None
    return Straggler(rank=rank, ratio=work_s[rank] / usual)


@dataclass(kw_only=True)
class StragglerDetector:
    """Watches the ranks of a generation by `Heartbeat.busy_time`; `now` is seconds of a monotonic clock."""

    named: Straggler | None = None
    _ranks: frozenset[int] = frozenset()
    _since: float = 0.0
    _base: dict[int, tuple[int, float]] = field(default_factory=dict)
    _newest: dict[int, tuple[int, float]] = field(default_factory=dict)
    _full: set[int] = field(default_factory=set)  # ranks with all steps of the window
    _slow_in_last_window: int | None = None

    def start_generation(self, ranks: Iterable[int], now: float) -> None:
        """A generation starts: forget all measurements and the named straggler."""
        self.named, self._ranks = None, frozenset(ranks)
        self.excuse(now)

    def excuse(self, now: float) -> None:
        """A pod was cut off, or stopped as a whole: what its ranks took meanwhile says nothing about them."""
        self._slow_in_last_window, self._since = None, now
        self._base, self._newest, self._full = {}, {}, set()

    def observe(self, rank: int, busy_time: tuple[int, float], now: float) -> None:
        """A rank reported its busy time so far."""
        if rank not in self._ranks:
            return
        base = self._base.setdefault(rank, busy_time)
        self._newest[rank] = busy_time
        if busy_time[0] - base[0] >= WINDOW_STEPS:
            self._full.add(rank)
        if len(self._full) < len(self._ranks) or now - self._since < MIN_WINDOW_S:
            return
        done = {
            r: (self._newest[r][0] - base[0], self._newest[r][1] - base[1]) for r, base in self._base.items()
        }
        self._judge({r: seconds / steps for r, (steps, seconds) in done.items()})
        self._base, self._since, self._full = dict(self._newest), now, set()

    def _judge(self, work_s: Mapping[int, float]) -> None:
        found = slowest(work_s)
        if self.named and found and found.rank == self.named.rank and found.ratio >= RECOVERED_RATIO:
            self.named = found
        elif found and found.ratio >= SLOW_RATIO:
            self.named = found if self._slow_in_last_window == found.rank else None
            self._slow_in_last_window = found.rank
        else:
            self.named = self._slow_in_last_window = None
