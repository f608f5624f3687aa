"""Names of objects that may exist although a cache does not contain them.

A watch with a label selector reports an object as deleted when it only loses its label, and a new list does
not contain it. A create whose answer was lost may have succeeded. Before anything is concluded from the
absence of such an object, `verify.py` reads it by name.
"""

import contextlib
from collections import deque
from collections.abc import Callable, Iterator

from dtj_operator.model.names import Key

KEEP_S = 600.0  # a leader verifies within seconds: an older name was verified by another leader


class UnverifiedNames:
    """Unverified names by job; names that are not verified for a long time are dropped, as in a follower.

    clock  returns seconds; with one that stands still no name is ever dropped
    """

    def __init__(self, clock: Callable[[], float] = lambda: 0.0) -> None:
        self._clock = clock
        self._names: dict[Key, dict[str, float]] = {}
        self._order: deque[tuple[float, Key, str]] = deque()

    def of(self, key: Key) -> tuple[str, ...]:
        return tuple(self._names.get(key, ()))

    def add(self, key: Key, name: str) -> None:
        now = self._clock()
        while self._order and self._order[0][0] < now - KEEP_S:
            since, old_key, old_name = self._order.popleft()
            if self._names.get(old_key, {}).get(old_name) == since:
                self.discard(old_key, old_name)
        self._names.setdefault(key, {})[name] = now
        self._order.append((now, key, name))

    def discard(self, key: Key, name: str) -> None:
        """Remove a name: it is now known whether the object exists."""
        names = self._names.get(key, {})
        names.pop(name, None)
        if not names:
            self._names.pop(key, None)

    @contextlib.contextmanager
    def verifying(self, key: Key, name: str) -> Iterator[None]:
        """Discard the name while the caller reads the object; put it back if that fails."""
        self.discard(key, name)
        try:
            yield
        except BaseException:
            self.add(key, name)
            raise

    def discard_all(self, key: Key) -> None:
        """Remove all names of this job."""
        self._names.pop(key, None)
