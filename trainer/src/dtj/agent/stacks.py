"""Python stacks of this node's ranks: asked for by a signal, read a moment later.

Nothing says that a rank has written all of them, and one that is stopped writes none: so all get the same
time, and whoever asks meanwhile gets the same answer.
"""

import time
from collections.abc import Callable, Iterable

from dtj.agent.rank_process import RankProcess

# So long a rank that was asked for its stacks may take to write them.
_STACKS_S = 1.0
_NONE = "no stack: the process does not respond\n"


class RankStacks:
    """What came of it, for one rank."""

    def __init__(self, process: RankProcess) -> None:
        self.process = process
        self.probe, text = process.read_stacks()
        self.text = text or _NONE


def as_text(found: Iterable[RankStacks]) -> str:
    """For people; ranks that are gone are missing."""
    parts = [
        f"rank {one.process.rank}, pid {one.process.pid}, step {one.process.heartbeat.step}\n{one.text}"
        for one in found
    ]
    return "\n".join(parts) or "no rank is running\n"


class Stacks:
    """At most one request is under way."""

    def __init__(self) -> None:
        self._callbacks: list[Callable[[list[RankStacks]], None]] = []
        self.deadline: float | None = None

    def request(self, processes: Iterable[RankProcess], then: Callable[[list[RankStacks]], None]) -> None:
        """Call `then` with the stacks of all ranks that live by then."""
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
