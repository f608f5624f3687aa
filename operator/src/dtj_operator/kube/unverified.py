"""Names of objects that may exist although a cache does not contain them.

A watch with a label selector reports an object as deleted when it only loses its label, and a new list does
not contain it. A create whose answer was lost may have succeeded. Before anything is concluded from the
absence of such an object, `verify.py` reads it by name.
"""

import contextlib
from collections.abc import Iterator

from dtj_operator.engine.newest import Newest
from dtj_operator.model.names import Key

MOST = 10_000  # jobs: a leader verifies within seconds, but a follower never does


class UnverifiedNames:
    """Unverified names by job, in the order in which they were added; of many jobs, those of the latest."""

    def __init__(self) -> None:
        self._names = Newest[Key, dict[str, None]](MOST)

    def of(self, key: Key) -> tuple[str, ...]:
        return tuple(self._names.get(key, ()))

    def add(self, key: Key, name: str) -> None:
        self._names[key] = names = self._names.get(key, {})
        names[name] = None

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
