"""Is the silence of the ranks too long? Pure: `now` is seconds of a monotonic clock, and never decreases.

    steps           -> how long a step usually takes -> the limit of a silence
    declared pauses -> no judgement before their own limit

A silence is the time in which no rank shows progress: a stuck rank stops all others in the next collective.
Whether a long one is a hang is judged by verdict.py, from what the ranks do then. Every event costs the same,
however many ranks there are.

Before the first step there is no step time to compare with. Silence then means that no rank uses CPU or I/O
(see activity.py).
"""

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

# A shorter silence is never judged, however short the steps are.
MIN_LIMIT_S = 30.0
# A step may take this many times the usual step ...
LIMIT_IN_STEPS = 5.0
# ... and half as long again as the second longest of the last steps, unless a rank is stopped.
LIMIT_IN_LONG_STEPS = 1.5
# Neither adds more than this to a long step.
MOST_ADDED_S = 900.0
_WINDOW = 64  # steps
# Factor for a rank's first steps: imports, compilation, caches, first access to storage ...
STARTUP_TIMES = 10.0
_STARTUP_STEPS = 3
# ... but it raises no limit above this. Also the limit for no activity before the job's first step.
FIRST_STEP_S = 600.0
# A heartbeat arrives at most this late. Subtracted, so that a hang is named within the limit.
REPORT_DELAY_S = 0.5
# The ranks are examined this long before the limit: they write their stacks twice, which takes a second each.
PROBE_S = 8.0


class Due(NamedTuple):
    """When to examine the ranks, and when to judge them, if no heartbeat arrives before."""

    probe_at: float
    judge_at: float


@dataclass(kw_only=True)
class StepTimes:
    """How long a step usually takes: one length per step, that of the slowest rank.

    limit_s       of a silence between two steps, after which the ranks are examined
    long_limit_s  up to this silence ranks that do nothing are left alone: some steps have taken so long
    """

    limit_s: float = MIN_LIMIT_S
    long_limit_s: float = MIN_LIMIT_S
    _lengths: deque[float] = field(default_factory=lambda: deque(maxlen=_WINDOW))
    _step: int = -1  # the newest step of any rank
    _length: float | None = None  # of that step; None if a pause was part of it
    _has_pause: bool = False

    @property
    def is_empty(self) -> bool:
        """No step is known."""
        return not self._lengths and self._length is None

    def start_generation(self) -> None:
        """Ranks may repeat steps; the known lengths stay."""
        self._close()
        self._step, self._length, self._has_pause = -1, None, False

    def paused(self) -> None:
        """The present step contains a declared pause: the other ranks wait for that, too."""
        self._has_pause = True

    def observe(self, step: int, length: float) -> None:
        """A rank completed a step that took `length` seconds."""
        if step > self._step:
            self._close()
            self._step, self._length = step, None if self._has_pause else length
            self._has_pause = False
        elif self._length is not None:
            self._length = max(self._length, length)

    def _close(self) -> None:
        if self._length is None:
            return
        self._lengths.append(self._length)
        known = sorted(self._lengths)
        usual, long = known[(len(known) - 1) // 2], known[max(0, len(known) - 2)]
        self.limit_s = max(MIN_LIMIT_S, usual + min((LIMIT_IN_STEPS - 1) * usual, MOST_ADDED_S))
        self.long_limit_s = _half_as_long_again(long)


@dataclass(kw_only=True)
class Watchdog:
    """Compares the time since the last sign of any rank with the limit.

    timeout_s  limit between two steps set by the user; None derives it from the steps
    """

    timeout_s: float | None = None
    ranks: set[int] = field(default_factory=set)  # expected to send heartbeats
    startup_s: float = 0.0  # the longest from the start of a generation to the first step of a rank
    newest: float = 0.0  # last sign of any rank
    _began: float = 0.0  # this generation
    _looked_at: float = 0.0  # last judgement in this silence
    _heard_at: dict[int, float] = field(default_factory=dict)
    _steps: dict[int, int] = field(default_factory=dict)
    _first: dict[int, int] = field(default_factory=dict)
    _starting: set[int] = field(default_factory=set)  # ranks in their first steps
    _pause_ends: dict[int, float] = field(default_factory=dict)  # of ranks in a declared pause
    _latest_pause_end: float | None = -math.inf  # of these; None: to be found again
    _unknown: set[int] = field(default_factory=set)  # ranks without a report of their activity
    _stopped: set[int] = field(default_factory=set)
    has_ended: bool = False  # a rank of this generation has
    _times: StepTimes = field(default_factory=StepTimes)

    def start_generation(self, ranks: Iterable[int], now: float) -> None:
        """A generation starts; the known step times stay."""
        self.ranks = set(ranks)
        self.newest = self._looked_at = self._began = now
        self._heard_at, self._steps, self._first = {}, {}, {}
        self._starting, self._unknown, self._stopped = set(ranks), set(ranks), set()
        self._pause_ends, self._latest_pause_end = {}, -math.inf
        self.has_ended = False
        self._times.start_generation()

    def observe(self, rank: int, step: int | None, now: float, *, pause_s: float | None = None) -> None:
        """A rank sent a heartbeat: a new step, or that it still works on one.

        pause_s  its present work may take this long; 0 for any time, None if it declared nothing
        """
        if rank not in self.ranks:
            return
        if step is not None:
            self._observe_step(rank, step, now)
        self._heard_at[rank] = self.newest = now
        if pause_s is not None:
            self._times.paused()
        self._set_pause_end(rank, None if pause_s is None else now + (pause_s or math.inf))

    def observe_activity(self, rank: int, now: float, *, is_stopped: bool) -> None:
        """A rank without a step yet was active, or its process was stopped or continued."""
        if rank in self.ranks and self.is_before_first_step:
            self._unknown.discard(rank)
            (self._stopped.add if is_stopped else self._stopped.discard)(rank)
            self.newest = now

    def ended(self, rank: int) -> None:
        """A rank exited; expect no more heartbeats from it."""
        self.has_ended = True
        self.ranks.discard(rank)
        self._starting.discard(rank)
        self._unknown.discard(rank)
        self._stopped.discard(rank)
        self._set_pause_end(rank, None)

    def look_again(self, now: float) -> None:
        """The silence was judged and is not a hang so far: judge it again after another limit."""
        self._looked_at = now

    def excuse(self, now: float) -> None:
        """The silence was judged and is not a hang: measure it from now on."""
        self.newest = self._looked_at = now

    @property
    def is_before_first_step(self) -> bool:
        """No rank has completed a step in any known generation."""
        return self._times.is_empty and not self._steps

    @property
    def since(self) -> float:
        """When the silence began: at the last sign of any rank, or when the last declared pause was over."""
        return max(self.newest, self._last_pause_end)

    def is_overdue(self, rank: int, now: float) -> bool:
        """The rank is still in a pause whose limit is over."""
        return now >= self._pause_ends.get(rank, math.inf)

    @property
    def limit_s(self) -> float | None:
        """Seconds of silence that are judged; None while some rank's activity is unknown."""
        base = self.timeout_s or self._times.limit_s
        if self.is_before_first_step:
            if self._unknown:
                return None
            return base if self._stopped or self.has_ended else self.inactive_limit_s
        if self._starting:
            base = max(base, min(STARTUP_TIMES * base, FIRST_STEP_S))
        return base if self.timeout_s else base - REPORT_DELAY_S

    @property
    def inactive_limit_s(self) -> float:
        """Seconds without activity before the first step after which a rank may be to blame for it.

        Ranks that all wait, for one that has ended, are judged earlier.
        """
        return STARTUP_TIMES * self.timeout_s if self.timeout_s else FIRST_STEP_S

    @property
    def long_limit_s(self) -> float:
        """Seconds of silence up to which ranks are left alone that are not stopped, beyond `limit_s`.

        A rank that starts again imports, downloads and reads as it did when the job started.
        """
        long = 0.0 if self.timeout_s else self._times.long_limit_s - REPORT_DELAY_S
        has_newcomer = len(self._first) < len(self.ranks)
        return max(long, _half_as_long_again(self.startup_s)) if has_newcomer else long

    @property
    def due(self) -> Due | None:
        """None if no silence is to be judged.

        A single active rank is enough to delay it: all others may wait for it, during an evaluation for
        instance, or during a pause that it declared. If a rank is stuck, the others are soon silent too.
        """
        limit = self.limit_s
        if limit is None or not self.ranks or self._last_pause_end == math.inf:
            return None
        end = max(max(self.newest, self._looked_at) + limit, self._last_pause_end)
        return Due(end - min(PROBE_S, limit / 2), end)

    def silent_for(self, now: float) -> float | None:
        """Seconds since the last sign of any rank, if they are to be judged; else None."""
        due = self.due
        return None if due is None or now < due.judge_at else now - self.newest

    @property
    def _last_pause_end(self) -> float:
        """When the last pause in effect is over; -inf if no rank is in a pause."""
        if self._latest_pause_end is None:
            self._latest_pause_end = max(self._pause_ends.values(), default=-math.inf)
        return self._latest_pause_end

    def _set_pause_end(self, rank: int, end: float | None) -> None:
        """None: the rank is in no pause. Only the end of the longest pause costs a search, later."""
        before = self._pause_ends.pop(rank, None)
        if end is not None:
            self._pause_ends[rank] = end
        latest = self._latest_pause_end
        if not self._pause_ends:
            self._latest_pause_end = -math.inf
        elif end is not None and latest is not None and end >= latest:
            self._latest_pause_end = end
        elif before is not None and before == latest:
            self._latest_pause_end = None

    def _observe_step(self, rank: int, step: int, now: float) -> None:
        before, first = self._steps.get(rank), self._first.setdefault(rank, step)
        if before is None:
            self.startup_s = max(self.startup_s, now - self._began)
        # The first interval of a generation is not a step time: it includes the rendezvous.
        if before is not None and step > before > first and rank not in self._pause_ends:
            self._times.observe(step, (now - self._heard_at[rank]) / (step - before))
        self._steps[rank] = step
        if step - first >= _STARTUP_STEPS:
            self._starting.discard(rank)


def _half_as_long_again(seconds: float) -> float:
    return seconds + min((LIMIT_IN_LONG_STEPS - 1) * seconds, MOST_ADDED_S)
