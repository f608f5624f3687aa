"""Python stacks of this pod's ranks: requested by a signal, read a moment later.

Nothing shows that a rank has written all its stacks, and a stopped rank writes none. So all ranks get the
same time, and requests that arrive meanwhile get the same answer.
"""

import time
from collections.abc import Callable, Iterable

from dtj.agent.rank.process import RankProcess
from dtj.agent.rank.process_usage import process_of
from dtj.agent.replica.frames import place_of

# Time that a rank gets to write its stacks.
_STACKS_S = 1.0
_NONE = "no stack: the process does not respond\n"


class RankStacks:
    """The stacks of one rank.

    place       of its main thread
    responds    it wrote something
    is_stopped  its process is stopped, for example by SIGSTOP or a debugger
    """

    def __init__(self, process: RankProcess) -> None:
        self.process = process
        text = process.read_stacks()
        self.responds = bool(text)
        self.text = text or _NONE
        self.place = place_of(text)
        state = process_of(process.pid)
        self.is_stopped = state is not None and state.state in "Tt"


def as_text(found: Iterable[RankStacks]) -> str:
    """The text for /stacks; ranks that are gone are missing."""
    parts = [
        f"rank {one.process.rank}, pid {one.process.pid}, step {one.process.heartbeat.step}\n{one.text}"
        for one in found
    ]
    return "\n".join(parts) or "no rank is running\n"


class Stacks:
    """At most one request is in progress."""

    def __init__(self) -> None:
        self._callbacks: list[Callable[[list[RankStacks]], None]] = []
        self.deadline: float | None = None

    def request(self, processes: Iterable[RankProcess], then: Callable[[list[RankStacks]], None]) -> None:
        """Call `then` with the stacks of all ranks that are alive at that time."""
        self._callbacks.append(then)
        if self.deadline is not None:
            return
        for process in processes:
            process.request_stacks()
        self.deadline = time.monotonic() + _STACKS_S

    def tick(self, processes: Iterable[RankProcess]) -> None:
        """Time has passed."""
        if self.deadline is None or time.monotonic() < self.deadline:
            return
        self.deadline = None
        found = [RankStacks(process) for process in processes]
        callbacks, self._callbacks = self._callbacks, []
        for then in callbacks:
            then(found)
