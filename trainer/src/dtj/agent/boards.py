"""The boards of this node's ranks, read now and then: who has done something since the last time."""

import time
from collections.abc import Iterable
from typing import NamedTuple

from dtj.agent.child import Child

# Often enough to account for every step of rank 0; of the others it is a sign of life.
_READ_S = {True: 0.05, False: 0.25}


class Sign(NamedTuple):
    """That a rank is at work.

    paused  with something that it declared to take long
    effort  steps whose work was measured, and seconds of work in them
    at      when the step was completed, by time.monotonic() of the rank's machine
    """

    generation: int
    step: int | None
    paused: bool
    effort: tuple[int, float] = (0, 0.0)
    at: float = 0.0


class Boards:
    """What each process's board said last."""

    def __init__(self, *, of_rank_0: bool) -> None:
        self._every_s = _READ_S[of_rank_0]
        self._stepped_at: dict[int, float] = {}
        self._said: dict[int, tuple[int, int, bool]] = {}  # by pid
        self.step_s = 0.0  # how long a step took lately
        self.deadline = time.monotonic() + self._every_s

    def tick(self, children: Iterable[Child]) -> dict[int, Sign]:
        """Where it is time: the signs of the ranks that gave one."""
        now = time.monotonic()
        if now < self.deadline:
            return {}
        self.deadline = now + self._every_s
        return {child.rank: sign for child in children if (sign := self.read(child))}

    def read(self, child: Child) -> Sign | None:
        """The rank's sign, None where nothing is new."""
        board = child.board
        now = (board.step if board.step is not None else -1, board.signs, board.is_paused)
        if self._said.get(child.pid, (-1, 0, False)) == now:
            return None
        before = self._said.get(child.pid, now)
        if before[0] >= 0 and now[0] > before[0]:
            self.step_s = (board.stepped_at - self._stepped_at.get(child.pid, board.stepped_at)) / (
                now[0] - before[0]
            )
        self._stepped_at[child.pid] = board.stepped_at
        self._said[child.pid] = now
        return Sign(child.generation, board.step, board.is_paused, board.busy_time, board.stepped_at)

    def forget(self, child: Child) -> None:
        """What is known of it, a pause for instance, is to be told anew."""
        self._said.pop(child.pid, None)
