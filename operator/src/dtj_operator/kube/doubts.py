"""Names of objects that may be there although a cache does not show them.

A watch by label calls gone what only lost its label, and a new list lacks it. A call whose answer was lost
may have made something. Whoever is about to conclude something from an absence asks by name first.
"""

import contextlib
from collections import deque
from collections.abc import Callable, Iterator

from dtj_operator.names import Key

KEPT_S = 600.0  # a leader looks within seconds: what is older, another one has looked at


class Doubts:
    """Names by key; those that nobody asked about for long are forgotten, as in a follower.

    clock  seconds; one that stands still forgets nothing
    """

    def __init__(self, clock: Callable[[], float] = lambda: 0.0) -> None:
        self._clock = clock
        self._kept: dict[Key, dict[str, float]] = {}
        self._order: deque[tuple[float, Key, str]] = deque()

    def of(self, key: Key) -> tuple[str, ...]:
        return tuple(self._kept.get(key, ()))

    def add(self, key: Key, name: str) -> None:
        now = self._clock()
        while self._order and self._order[0][0] < now - KEPT_S:
            since, old, forgotten = self._order.popleft()
            if self._kept.get(old, {}).get(forgotten) == since:
                self.settle(old, forgotten)
        self._kept.setdefault(key, {})[name] = now
        self._order.append((now, key, name))

    def settle(self, key: Key, name: str) -> None:
        """It is known by now."""
        names = self._kept.get(key, {})
        names.pop(name, None)
        if not names:
            self._kept.pop(key, None)

    @contextlib.contextmanager
    def settling(self, key: Key, name: str) -> Iterator[None]:
        """It is being asked for; where that fails the doubt stays."""
        self.settle(key, name)
        try:
            yield
        except BaseException:
            self.add(key, name)
            raise

    def drop(self, key: Key) -> None:
        """Nothing of this key matters any more."""
        self._kept.pop(key, None)
