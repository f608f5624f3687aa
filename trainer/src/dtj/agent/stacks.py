"""Python stacks of this node's ranks: asked for by a signal, read a moment later.

Nothing says that a rank has written all of them, and one that is stopped writes none: so all get the same
time, and whoever asks meanwhile gets the same answer.
"""

import time
from collections.abc import Callable, Iterable

from dtj.agent.child import Child

# So long a rank that was asked for its stacks may take to write them.
_WRITE_S = 1.0
_NONE = "no stack: the process does not answer\n"


class Found:
    """What came of it, for one rank."""

    def __init__(self, child: Child) -> None:
        self.child = child
        self.look, text = child.look()
        self.text = text or _NONE


def as_text(found: Iterable[Found]) -> str:
    """For people; ranks that are gone are missing."""
    parts = [
        f"rank {one.child.rank}, pid {one.child.pid}, step {one.child.board.step}\n{one.text}"
        for one in found
    ]
    return "\n".join(parts) or "no rank is running\n"


class Stacks:
    """At most one request is under way."""

    def __init__(self) -> None:
        self._askers: list[Callable[[list[Found]], None]] = []
        self.deadline: float | None = None

    def ask(self, children: Iterable[Child], then: Callable[[list[Found]], None]) -> None:
        """Call `then` with the stacks of all ranks that live by then."""
        self._askers.append(then)
        if self.deadline is not None:
            return
        for child in children:
            child.ask_stacks()
        self.deadline = time.monotonic() + _WRITE_S

    def tick(self, children: Iterable[Child]) -> None:
        """Time has passed."""
        if self.deadline is None or time.monotonic() < self.deadline:
            return
        self.deadline = None
        found = [Found(child) for child in children]
        askers, self._askers = self._askers, []
        for then in askers:
            then(found)
