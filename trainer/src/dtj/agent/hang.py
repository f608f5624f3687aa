"""Is the silence of the ranks a hang, and which ranks cause it? Pure: `now` is seconds of a monotonic clock.

A stuck rank stops all others in the next collective, so silence alone does not name it. The stacks do: a rank
inside a collective waits for others; a rank that is elsewhere, or does not respond, keeps them waiting.

Before the first step there is no step time to compare with. Silence then means that no rank uses CPU or I/O
(see activity.py), and it counts as a hang only if another rank is waiting.
"""

import re
import statistics
from collections import deque
from collections.abc import Mapping, Set
from dataclasses import dataclass, field

# A shorter pause between two steps is never treated as a hang, however short the steps are.
MIN_LIMIT_S = 30.0
# Allows for undeclared evaluations, loading and compiling: a step may take this many times the median step.
LIMIT_IN_STEPS = 5.0
# Factor for a rank's first steps: imports, compilation, caches, first access to storage.
STARTUP_TIMES = 10.0
_STARTUP_STEPS = 3
# Before the job's first step: the limit for no activity on any rank.
FIRST_STEP_S = 600.0
_WINDOW = 64
# A heartbeat arrives at most this late. Subtracted, so that a hang is named within the limit.
REPORT_DELAY_S = 0.5
# The stacks are requested this long before the limit, since ranks need a second to write them.
PROBE_S = 2.0

# Innermost Python frames of a main thread that waits for its peers, or for a backward that waits for them.
WAITING_FRAMES = (
    *("torch/distributed/", "torch/autograd/graph.py", "torch/nn/parallel/distributed.py"),
    *("dtj/agreement.py", "dtj/control_pipe.py", "dtj/process_groups.py", "dtj/heal.py"),
    *("dtj/parallel/average.py", "dtj/parallel/zero.py", "dtj/sync/stale.py"),
)
# The frame of a main thread that waits for its own data workers. It polls them, so it is not asleep.
_LOADS = "torch/utils/data/dataloader.py"
# Python's own waiting functions: the frame of their caller says more.
_WAITING = re.compile(r"/(threading|queue|selectors|subprocess)\.py$|/multiprocessing/")
_FRAME = re.compile(r'File "([^"]+)", line (\d+) in (\S+)')


@dataclass(kw_only=True)
class Watchdog:
    """Compares the time since the last step with the usual step time.

    timeout_s  limit between two steps set by the user; None derives it from the steps
    """

    timeout_s: float | None = None
    _heard_at: dict[int, float] = field(default_factory=dict)
    _steps: dict[int, int] = field(default_factory=dict)
    _first: dict[int, int] = field(default_factory=dict)
    _paused: set[int] = field(default_factory=set)
    _stopped: dict[int, bool] = field(default_factory=dict)  # ranks whose agent reports activity
    _lengths: deque[float] = field(default_factory=lambda: deque(maxlen=_WINDOW))

    def start_generation(self, ranks: range, now: float) -> None:
        """A generation starts; the known step times stay."""
        self._heard_at = dict.fromkeys(ranks, now)
        self._steps, self._first, self._paused, self._stopped = {}, {}, set(), {}

    def observe(self, rank: int, step: int | None, now: float, *, paused: bool) -> None:
        """A rank sent a heartbeat: a new step, or that it still works on one."""
        if rank not in self._heard_at:
            return
        if step is not None:
            before = self._steps.get(rank)
            # The first interval of a generation is not a step time: it includes the rendezvous.
            if before is not None and step > before > self._first[rank] and rank not in self._paused:
                self._lengths.append((now - self._heard_at[rank]) / (step - before))
            self._steps[rank] = step
            self._first.setdefault(rank, step)
        (self._paused.add if paused else self._paused.discard)(rank)
        self._heard_at[rank] = now

    def observe_activity(self, rank: int, now: float, *, is_stopped: bool) -> None:
        """A rank without a step yet was active, or its process was stopped or continued."""
        if rank in self._heard_at and self.is_before_first_step:
            self._stopped[rank] = is_stopped
            self._heard_at[rank] = now

    def excuse(self, now: float) -> None:
        """The silence was examined and is not a hang: measure it from now on."""
        self._heard_at = dict.fromkeys(self._heard_at, now)

    @property
    def is_before_first_step(self) -> bool:
        """No rank has completed a step in any known generation."""
        return not self._lengths and not self._steps

    @property
    def ranks(self) -> Set[int]:
        """Ranks that are expected to send heartbeats."""
        return self._heard_at.keys()

    def ended(self, rank: int) -> None:
        """A rank exited; expect no more heartbeats from it."""
        self._heard_at.pop(rank, None)
        self._paused.discard(rank)

    def limit(self, rank: int) -> float | None:
        """Seconds without a heartbeat that count as a hang; None if some rank's activity is unknown."""
        return self._limit(is_starting=self._is_starting(rank))

    @property
    def due(self) -> tuple[float, float] | None:
        """When to request the stacks, and when to judge them, if no heartbeat arrives before.

        A single active rank is enough to delay both: all others may wait for it, during an evaluation for
        instance, or during a pause that it declared. If a rank is stuck, the others are soon silent too.
        """
        if self._paused or not self._heard_at:
            return None
        # The longest limit of any rank, computed once: the agent reads this in every turn of its loop.
        limit = self._limit(is_starting=any(map(self._is_starting, self._heard_at)))
        if limit is None:
            return None
        end = max(self._heard_at.values()) + limit
        return end - min(PROBE_S, limit / 2), end

    def silent_for(self, now: float) -> float | None:
        """Seconds since the last heartbeat of any rank, if they exceed the limit; else None."""
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

    frame       innermost Python frame of its main thread; empty if it did not respond
    is_stopped  its process is stopped, for example by SIGSTOP or a debugger
    asleep_s    seconds before the probe in which its main thread never woke up
    """

    frame: str = ""
    is_stopped: bool = False
    asleep_s: float = 0.0

    @property
    def waits(self) -> bool:
        """The rank waits for others, rather than keeping them waiting."""
        return (
            bool(self.frame) and not self.is_stopped and any(place in self.frame for place in WAITING_FRAMES)
        )


def innermost(stacks: str) -> str:
    """The innermost telling frame of the main thread: "file:line in function".

    faulthandler prints the main thread last, and its innermost frame first.
    """
    threads = stacks.split("\n\n")
    main = next((t for t in reversed(threads) if _FRAME.search(t)), "")
    frames = list(_FRAME.finditer(main))
    telling = [f for f in frames if not _WAITING.search(f[1])] or frames
    return f"{telling[0][1]}:{telling[0][2]} in {telling[0][3]}" if telling else ""


def culprits(probes: Mapping[int, Probe]) -> list[int]:
    """Ranks that keep the others waiting; all ranks if each of them waits."""
    found = [rank for rank, probe in probes.items() if not probe.waits]
    return sorted(found or probes)


def culprits_before_first_step(probes: Mapping[int, Probe], *, silent_s: float) -> list[int]:
    """Stopped ranks, else ranks that keep others waiting; none if one of these still wakes up at times.

    A rank that wakes up may wait for something outside the job, for example for data that is not there yet.
    """
    stopped = sorted(rank for rank, probe in probes.items() if probe.is_stopped)
    waiting = [probe for probe in probes.values() if probe.waits or _LOADS in probe.frame]
    others = [probe for probe in probes.values() if probe not in waiting]
    is_stuck = waiting and all(probe.asleep_s > silent_s / 2 for probe in others)
    return stopped or (culprits(probes) if is_stuck else [])


def describe_hang(rank: int, probe: Probe, *, silence: str, deadlock: bool) -> str:
    """The message about a culprit and the silence."""
    if deadlock:
        what = f"waits for its peers, as do all other ranks ({probe.frame})"
    elif probe.is_stopped:
        what = "is stopped (by SIGSTOP or a debugger)"
    elif not probe.frame:
        what = "does not respond"
    else:
        what = f"is in {probe.frame}"
    return f"{silence}: rank {rank} {what}"
