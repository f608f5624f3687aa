"""A few numbers in memory that a rank shares with its agent: progress, signs of life and pace.

A write takes less than a microsecond and never blocks, so it is done at every step; the agent reads at any
time. Without an agent the memory is private and not read.
"""

import contextlib
import mmap
import time
from collections.abc import Iterator

NONE = -1
# A pause may take an hour, if it does not say otherwise; a save may take 10 times the longest so far.
PAUSE_S = 3600.0
SAVE_S = 900.0
_SAVE_TIMES = 10.0
_ANY_TIME = 0


class SharedHeartbeat:
    """Eight numbers; the rank writes, the agent reads. An inconsistent read is corrected by the next one.

    0  last completed step      3  steps whose work was measured
    1  signs of life            4  nanoseconds of work in these steps
    2  pauses in effect         5  time.monotonic() in ns when the last step was completed
                                6  nanoseconds that they may take, 0: any time
                                7  1 if steps of an optimizer are counted, since the program reports none
    """

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, mmap.PAGESIZE)  # shared with processes that are forked later
        self._values = memoryview(self._memory).cast("q")
        self._values[0] = NONE
        self._reports = False  # the program reports its own steps
        self.detours = 0  # counts work that is not part of a step: saves, evaluations, pauses
        self._rests = False  # the loop has ended
        self._longest_save_s = 0.0
        self.is_compared = True  # busy time can be measured and compared

    @property
    def step(self) -> int | None:
        """The last completed step of this rank, None before the first."""
        return None if self._values[0] == NONE else self._values[0]

    @property
    def is_counted(self) -> bool:
        """The program reports no steps: those of its optimizer are counted, often from 1 in each life."""
        return self._values[7] > 0

    @property
    def signs(self) -> int:
        """Counter that grows whenever the rank shows that it is working."""
        return self._values[1]

    @property
    def is_paused(self) -> bool:
        """The rank has declared that its present work may take longer than a step."""
        return self._values[2] > 0

    @property
    def pause_s(self) -> float | None:
        """How long the pause may take; 0 for any time, None if there is no pause."""
        if not self.is_paused:
            return None
        return self._values[6] / 1e9

    @property
    def stepped_at(self) -> float:
        """time.monotonic() in seconds when the last step was completed."""
        return self._values[5] / 1e9

    @property
    def busy_time(self) -> tuple[int, float]:
        """Number of measured steps, and seconds of work in them."""
        return self._values[3], self._values[4] / 1e9

    def worked(self, seconds: float) -> None:
        """Record the busy time of one more step."""
        self._values[4] += int(seconds * 1e9)
        self._values[3] += 1

    def stepped(self, step: int, *, is_counted: bool = False) -> None:
        """Record a completed step. is_counted: see above."""
        self._values[7] = is_counted
        self._values[5] = time.monotonic_ns()
        self._values[0] = step
        self._values[1] += 1

    def reports_steps(self) -> None:
        """From now on the program reports its steps: its optimizer may count from 1 after a restart."""
        self._reports = True

    def optimized(self, count: int) -> None:
        """Record an optimizer step; only a sign of life if the program reports its own steps."""
        if self._reports:
            self._values[1] += 1
        else:
            self.stepped(count, is_counted=True)

    def sign(self) -> None:
        """Record a sign of life from work that is not part of a step."""
        self.detours += 1
        self._values[1] += 1

    @contextlib.contextmanager
    def paused(self, at_most_s: float = PAUSE_S) -> Iterator[None]:
        """Context for work that is not part of a step and takes no longer than this."""
        self.detours += 1
        self._begin_pause(int(at_most_s * 1e9))
        try:
            yield
        finally:
            self._end_pause()

    @contextlib.contextmanager
    def saving(self) -> Iterator[None]:
        """Context for a save; its limit follows from the longest save so far."""
        began = time.monotonic()
        with self.paused(max(SAVE_S, _SAVE_TIMES * self._longest_save_s)):
            yield
        self._longest_save_s = max(self._longest_save_s, time.monotonic() - began)

    def rest(self) -> None:
        """All steps are done: the rest of the program may take any time."""
        if not self._rests:
            self._rests = True
            self._begin_pause(_ANY_TIME)

    def wake(self) -> None:
        """End `rest`: steps, or the end of the process, are expected again."""
        if self._rests:
            self._rests = False
            self._end_pause()

    def leave(self, *, is_done: bool) -> None:
        """The program is over, and the exit of the process is expected.

        is_done  without a failure: its threads and exit functions, which may upload, get as long as a save
        """
        self.wake()
        if is_done:
            self._begin_pause(int(SAVE_S * 1e9))

    def _begin_pause(self, most_ns: int) -> None:
        """The limit first: the agent may read between two writes. A pause within another keeps its limit."""
        if not self.is_paused or (self._values[6] != _ANY_TIME and most_ns > self._values[6]):
            self._values[6] = most_ns
        self._values[2] += 1

    def _end_pause(self) -> None:
        self._values[2] -= 1
        self._values[1] += 1


mine = SharedHeartbeat()  # of this process; a rank replaces it by the one that its agent created


def use(heartbeat: SharedHeartbeat) -> None:
    """Called in the rank, right after the fork."""
    global mine  # noqa: PLW0603 - a process is one rank and has one heartbeat
    mine = heartbeat
