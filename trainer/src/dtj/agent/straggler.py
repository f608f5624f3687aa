"""Work of the ranks on their steps -> the one that keeps the others waiting. Pure.

Compared are windows of some steps, rank with rank: where all are slow nobody is slower. One slow window may
be an evaluation, a full disk or a neighbour; the second in a row names the rank.
"""

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

# A window has so many steps of every rank, and lasts so long; after two of them, within 20 steps, a name.
WINDOW_STEPS = 6
MIN_WINDOW_S = 0.5
# Its work takes so many times the others' before it is named, and must fall below that to be well again.
SLOW_RATIO = 1.5
RECOVERED_RATIO = 1.25
# What a step loses by it; less is the noise of a busy machine.
MIN_LOSS_S = 0.005


@dataclass(frozen=True, kw_only=True)
class Straggler:
    """A rank whose own work on a step takes `ratio` times that of the others."""

    rank: int
    ratio: float


def slowest(work_s: Mapping[int, float]) -> Straggler | None:
    """The rank with the most work a step, against the median of the others; None where it makes no odds."""
    if len(work_s) < 2:
        return None
    rank = max(work_s, key=lambda r: (work_s[r], -r))
    usual = statistics.median(work for other, work in work_s.items() if other != rank)
    if usual <= 0 or work_s[rank] - usual < MIN_LOSS_S:
        return None
    return Straggler(rank=rank, ratio=work_s[rank] / usual)


@dataclass(kw_only=True)
class StragglerDetector:
    """The present generation's ranks; busy times are those of a Heartbeat, `now` any clock's seconds."""

    named: Straggler | None = None
    _ranks: frozenset[int] = frozenset()
    _since: float = 0.0
    _base: dict[int, tuple[int, float]] = field(default_factory=dict)
    _newest: dict[int, tuple[int, float]] = field(default_factory=dict)
    _slow_in_last_window: int | None = None

    def start_generation(self, ranks: Iterable[int], now: float) -> None:
        """A generation begins: what was known of the pace is forgotten, also who was slow."""
        self.named = self._slow_in_last_window = None
        self._ranks, self._since = frozenset(ranks), now
        self._base, self._newest = {}, {}

    def observe(self, rank: int, busy_time: tuple[int, float], now: float) -> None:
        """How much a rank has worked so far."""
        if rank not in self._ranks:
            return
        self._base.setdefault(rank, busy_time)
        self._newest[rank] = busy_time
        if len(self._base) < len(self._ranks) or now - self._since < MIN_WINDOW_S:
            return
        steps = {r: self._newest[r][0] - self._base[r][0] for r in self._ranks}
        if min(steps.values()) >= WINDOW_STEPS:
            self._judge({r: (self._newest[r][1] - self._base[r][1]) / steps[r] for r in self._ranks})
            self._base, self._since = dict(self._newest), now

    def _judge(self, work_s: Mapping[int, float]) -> None:
        found = slowest(work_s)
        if self.named and found and found.rank == self.named.rank and found.ratio >= RECOVERED_RATIO:
            self.named = found
        elif found and found.ratio >= SLOW_RATIO:
            self.named = found if self._slow_in_last_window == found.rank else None
            self._slow_in_last_window = found.rank
        else:
            self.named = self._slow_in_last_window = None
