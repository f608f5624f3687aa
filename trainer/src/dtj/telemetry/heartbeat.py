"""A few numbers of a rank in memory that it shares with the agent: how far it is, alive, and at what pace.

Writing costs less than a microsecond and never blocks, so it is done at every step; the agent looks when it
likes. Without an agent the memory is private and nobody looks.
"""

import contextlib
import mmap
import time
from collections.abc import Iterator

NONE = -1


class SharedHeartbeat:
    """Some numbers; one process writes, another reads, and a torn read is corrected by the next.

    0  last completed step      3  steps whose work was measured
    1  signs of life            4  nanoseconds of work in them
    2  declared pauses          5  nanoseconds of time.monotonic() when the last step was completed
    """

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, mmap.PAGESIZE)  # shared with processes that are forked from here on
        self._values = memoryview(self._memory).cast("q")
        self._values[0] = NONE
        self._reports = False  # the program itself says which step it is at
        self.detours = 0  # whatever was done between steps and is no part of them
        self._rests = False  # no step is to come
        self.is_compared = True  # its work on a step can be told from its waits

    @property
    def step(self) -> int | None:
        """The last completed step of this rank, None before the first."""
        return None if self._values[0] == NONE else self._values[0]

    @property
    def signs(self) -> int:
        """Grows whenever the rank shows that it is at work."""
        return self._values[1]

    @property
    def is_paused(self) -> bool:
        """The rank has declared that it is busy with something that may take any time."""
        return self._values[2] > 0

    @property
    def stepped_at(self) -> float:
        """When the last step was completed, by time.monotonic() of this machine."""
        return self._values[5] / 1e9

    @property
    def busy_time(self) -> tuple[int, float]:
        """Steps whose work was measured, and seconds of work in all of them."""
        return self._values[3], self._values[4] / 1e9

    def worked(self, seconds: float) -> None:
        """One more step, in which this rank worked so long."""
        self._values[4] += int(seconds * 1e9)
        self._values[3] += 1

    def stepped(self, step: int) -> None:
        """A step is complete."""
        self._reports = True
        self._values[5] = time.monotonic_ns()
        self._values[0] = step
        self._values[1] += 1

    def optimized(self, count: int) -> None:
        """An optimizer made its step; where the program reports steps by itself, only a sign of life."""
        if self._reports:
            self._values[1] += 1
            return
        self.stepped(count)
        self._reports = False

    def sign(self) -> None:
        """Still at work, on something that is no part of a step."""
        self.detours += 1
        self._values[1] += 1

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """What happens in here may take any time."""
        self.detours += 1
        self._values[2] += 1
        try:
            yield
        finally:
            self._values[2] -= 1
            self._values[1] += 1

    def rest(self) -> None:
        """All steps are done: what the program does with its model now may take any time."""
        if not self._rests:
            self._rests = True
            self._values[2] += 1

    def wake(self) -> None:
        """Something is expected again: steps, or the end of the process."""
        if self._rests:
            self._rests = False
            self._values[2] -= 1
            self._values[1] += 1


mine = SharedHeartbeat()  # of this process; a rank replaces it by the one that its agent made


def use(heartbeat: SharedHeartbeat) -> None:
    """Called in the rank, right after the fork."""
    global mine  # noqa: PLW0603 - a process is one rank and has one heartbeat
    mine = heartbeat
