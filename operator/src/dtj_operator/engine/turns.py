"""Turns for keys, at a limited rate for all of them together and in the order in which they ask.

With many keys the interval between two turns of a key grows, so that no key waits much longer than another. A
key that waits costs nothing: it is not taken from any queue only to find that it has to wait.
"""

import asyncio
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class Turns(Generic[K]):
    """Calls `on_turn` when a key has its turn, which it has until `done`.

    per_second  turns of all keys together
    at_least_s  between two turns of a key
    early_s     a key that asks this much too early gets its turn all the same: it asks only now and then
    """

    def __init__(
        self, on_turn: Callable[[K], None], *, per_second: float, at_least_s: float, early_s: float = 0.0
    ) -> None:
        self._on_turn, self._per_second = on_turn, per_second
        self._at_least_s, self._early_s = at_least_s, early_s
        self._done_at: dict[K, float] = {}  # of every key that has asked since it last left
        self._waiting: dict[K, None] = {}  # in order
        self._having: set[K] = set()
        self._next_at = 0.0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def interval_s(self) -> float:
        """Seconds between two turns of a key; with the wait for other keys it can take twice as long."""
        return max(self._at_least_s, len(self._done_at) / self._per_second)

    def ask(self, key: K) -> None:
        """Ask for a turn; ignored if the last one was a moment ago, so ask again later."""
        done_at = self._done_at.setdefault(key, float("-inf"))
        if key not in self._having and _now() - done_at >= self.interval_s - self._early_s:
            self._waiting.setdefault(key)
            self._schedule()

    def has(self, key: K) -> bool:
        """Whether it is this key's turn."""
        return key in self._having

    def done(self, key: K) -> None:
        """Note that the key has done what it needs a turn for, in its turn or at another occasion."""
        if key in self._done_at:
            self._done_at[key] = _now()
        self._waiting.pop(key, None)
        self._having.discard(key)

    def leave(self, key: K) -> None:
        """Forget the key."""
        self.done(key)
        self._done_at.pop(key, None)

    def close(self) -> None:
        """Give no more turns."""
        self._waiting.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _schedule(self) -> None:
        if self._timer is None and self._waiting:
            self._next_at = max(_now(), self._next_at)
            self._timer = asyncio.get_running_loop().call_at(self._next_at, self._give)

    def _give(self) -> None:
        self._timer = None
        key = next(iter(self._waiting), None)
        if key is not None:
            del self._waiting[key]
            self._having.add(key)
            self._next_at += 1 / self._per_second  # from when it was due: a busy loop gives no fewer turns
            self._on_turn(key)
        self._schedule()


def _now() -> float:
    return asyncio.get_running_loop().time()
