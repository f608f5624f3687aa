"""Silence of the ranks -> is it a hang, and whose. Pure: `now` is seconds of any clock that goes forward.

A rank that is stuck stops all others in the next collective, so silence alone names nobody. Their stacks
do: who is in a collective waits for somebody else; who is anywhere else, or cannot answer, did not come.

Before the first step of a job there is nothing to compare with. Silence is then that no rank does anything at
all, see activity.py, and a hang is only that of which somebody waits for the outcome.
"""

import re
import statistics
from collections import deque
from collections.abc import Mapping, Set
from dataclasses import dataclass, field

# A pause of this length between two steps is never taken for a hang, however short the steps are.
MIN_LIMIT_S = 30.0
# Evaluations, loading and compiling that nobody declared: a step may take so many times the usual.
LIMIT_IN_STEPS = 5.0
# Until a rank has done its first steps: imports, compilation, caches, the first rendezvous of storage.
STARTUP_TIMES = 10.0
_STARTUP_STEPS = 3
# Before the first step of all, so long nobody may have done anything.
FIRST_STEP_S = 600.0
_WINDOW = 64
# A sign of life is this late at most: a hang is named before the limit is over, as its ranks count it.
REPORT_DELAY_S = 0.5
# So long before the limit is over the ranks are asked for their stacks, which take a second to be written.
PROBE_S = 2.0

# The innermost Python frame of a main thread that waits for its peers, or for a backward that does.
WAITING_FRAMES = (
    *("torch/distributed/", "torch/autograd/graph.py", "torch/nn/parallel/distributed.py"),
    *("dtj/agreement.py", "dtj/control_pipe.py", "dtj/process_groups.py", "dtj/heal.py"),
    *("dtj/parallel/average.py", "dtj/parallel/zero.py", "dtj/sync/stale.py"),
)
# The same for one that waits for its own processes which load samples. It looks after them now and then.
_LOADS = "torch/utils/data/dataloader.py"
# Where Python waits for somebody: who called it tells more.
_WAITING = re.compile(r"/(threading|queue|selectors|subprocess)\.py$|/multiprocessing/")
_FRAME = re.compile(r'File "([^"]+)", line (\d+) in (\S+)')


@dataclass(kw_only=True)
class Watchdog:
    """How long the ranks have brought no step, against what is usual.

    timeout_s  what the user allows between two steps; None derives it from the steps
    """

    timeout_s: float | None = None
    _heard_at: dict[int, float] = field(default_factory=dict)
    _steps: dict[int, int] = field(default_factory=dict)
    _first: dict[int, int] = field(default_factory=dict)
    _paused: set[int] = field(default_factory=set)
    _stopped: dict[int, bool] = field(default_factory=dict)  # ranks whose activity is told of at all
    _lengths: deque[float] = field(default_factory=lambda: deque(maxlen=_WINDOW))

    def start_generation(self, ranks: range, now: float) -> None:
        """A generation begins; what is known of the steps' length stays."""
        self._heard_at = dict.fromkeys(ranks, now)
        self._steps, self._first, self._paused, self._stopped = {}, {}, set(), {}

    def observe(self, rank: int, step: int | None, now: float, *, paused: bool) -> None:
        """A rank gave a sign of life: a step, or within one that it is still at work."""
        if rank not in self._heard_at:
            return
        if step is not None:
            before = self._steps.get(rank)
            # The first time of a generation is not a step's alone: the ranks still come together.
            if before is not None and step > before > self._first[rank] and rank not in self._paused:
                self._lengths.append((now - self._heard_at[rank]) / (step - before))
            self._steps[rank] = step
            self._first.setdefault(rank, step)
        (self._paused.add if paused else self._paused.discard)(rank)
        self._heard_at[rank] = now

    def observe_activity(self, rank: int, now: float, *, is_stopped: bool) -> None:
        """A rank that has not done a step yet did something, or its process was stopped or goes on."""
        if rank in self._heard_at and self.is_before_first_step:
            self._stopped[rank] = is_stopped
            self._heard_at[rank] = now

    def excuse(self, now: float) -> None:
        """Silence was looked into, and is no hang: it counts from now on."""
        self._heard_at = dict.fromkeys(self._heard_at, now)

    @property
    def is_before_first_step(self) -> bool:
        """No rank has done one, in no generation that is known of."""
        return not self._lengths and not self._steps

    @property
    def ranks(self) -> Set[int]:
        """Those of which something is expected."""
        return self._heard_at.keys()

    def ended(self, rank: int) -> None:
        """A rank is done; nothing more is expected of it."""
        self._heard_at.pop(rank, None)
        self._paused.discard(rank)

    def limit(self, rank: int) -> float | None:
        """Seconds without a sign of life that are too many; None where nothing is known of some rank."""
        return self._limit(is_starting=self._is_starting(rank))

    @property
    def due(self) -> tuple[float, float] | None:
        """When to look at the ranks, and when to judge, should none of them give a sign of life before.

        One at work may be what all others wait for, in an evaluation for instance, and so may one that
        has declared a pause; when one is stuck, the others are soon silent too.
        """
        if self._paused or not self._heard_at:
            return None
        # The longest limit of any rank, worked out once: the agent asks at every turn of its loop.
        limit = self._limit(is_starting=any(map(self._is_starting, self._heard_at)))
        if limit is None:
            return None
        end = max(self._heard_at.values()) + limit
        return end - min(PROBE_S, limit / 2), end

    def silent_for(self, now: float) -> float | None:
        """Seconds since any rank gave a sign of life, where they are too many."""
        due = self.due
        if due is None or now < due[1]:
            return None
        return now - max(self._heard_at.values())

    def _is_starting(self, rank: int) -> bool:
        return self._steps.get(rank, 0) - self._first.get(rank, 0) < _STARTUP_STEPS

    def _limit(self, *, is_starting: bool) -> float | None:
        if self.is_before_first_step:
            return self._limit_before_first_step
        usual = statistics.median(self._lengths) if self._lengths else 0.0
        times = STARTUP_TIMES if is_starting else 1.0
        return (
            times * self.timeout_s
            if self.timeout_s
            else times * max(MIN_LIMIT_S, LIMIT_IN_STEPS * usual) - REPORT_DELAY_S
        )

    @property
    def _limit_before_first_step(self) -> float | None:
        if not self._heard_at.keys() <= self._stopped.keys():
            return None
        if any(self._stopped[rank] for rank in self._heard_at):
            return self.timeout_s or MIN_LIMIT_S
        return STARTUP_TIMES * self.timeout_s if self.timeout_s else FIRST_STEP_S


@dataclass(frozen=True, kw_only=True)
class Probe:
    """What a probe of a silent rank found.

    frame       innermost Python frame of its main thread; empty where it did not answer
    is_stopped  its process is stopped, as by SIGSTOP or a debugger
    asleep_s    seconds, before it was probed, in which its main thread did not even look at the clock
    """

    frame: str = ""
    is_stopped: bool = False
    asleep_s: float = 0.0

    @property
    def waits(self) -> bool:
        """It waits for others, and is not what they wait for."""
        return (
            bool(self.frame) and not self.is_stopped and any(place in self.frame for place in WAITING_FRAMES)
        )


def innermost(stacks: str) -> str:
    """The innermost frame of the main thread that says what it does: "file:line in function".

    faulthandler prints the main thread last, and its innermost frame first.
    """
    threads = stacks.split("\n\n")
    main = next((t for t in reversed(threads) if _FRAME.search(t)), "")
    frames = list(_FRAME.finditer(main))
    telling = [f for f in frames if not _WAITING.search(f[1])] or frames
    return f"{telling[0][1]}:{telling[0][2]} in {telling[0][3]}" if telling else ""


def culprits(probes: Mapping[int, Probe]) -> list[int]:
    """Ranks that keep the others waiting; all of them where everybody waits for everybody."""
    found = [rank for rank, probe in probes.items() if not probe.waits]
    return sorted(found or probes)


def culprits_before_first_step(probes: Mapping[int, Probe], *, silent_s: float) -> list[int]:
    """Who is stopped, or keeps those waiting who wait; nobody, where some other rank still looks up at times.

    One that does may wait for the world outside: for data that somebody else is to provide, say.
    """
    stopped = sorted(rank for rank, probe in probes.items() if probe.is_stopped)
    waiting = [probe for probe in probes.values() if probe.waits or _LOADS in probe.frame]
    others = [probe for probe in probes.values() if probe not in waiting]
    is_stuck = waiting and all(probe.asleep_s > silent_s / 2 for probe in others)
    return stopped or (culprits(probes) if is_stuck else [])


def describe_hang(rank: int, probe: Probe, *, silence: str, deadlock: bool) -> str:
    """What is said of a culprit, and of the silence."""
    if deadlock:
        what = f"waits for its peers, as do all other ranks ({probe.frame})"
    elif probe.is_stopped:
        what = "is stopped (by SIGSTOP or a debugger)"
    elif not probe.frame:
        what = "does not respond"
    else:
        what = f"is in {probe.frame}"
    return f"{silence}: rank {rank} {what}"
