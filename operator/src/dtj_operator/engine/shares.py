"""Places that groups share: a group takes another one only while it holds fewer than are free.

So a group that holds its places for long, as a namespace with a slow webhook does, takes at most half of
them, two such groups two thirds, and one is left for the next group. Runs on one event loop.
"""

import asyncio
import contextlib
from collections import Counter, deque
from collections.abc import AsyncIterator, Hashable
from typing import Generic, TypeVar

G = TypeVar("G", bound=Hashable)


class Shares(Generic[G]):
    def __init__(self, places: int) -> None:
        self._free = places
        self._held: Counter[G] = Counter()
        self._waiting: dict[G, deque[asyncio.Future[None]]] = {}  # in order

    def may_take(self, group: G) -> bool:
        """Whether the group may have another place now."""
        return self._held[group] < self._free

    def try_take(self, group: G) -> bool:
        """Take a place for the group if it may have another one now."""
        if not self.may_take(group):
            return False
        self._free -= 1
        self._held[group] += 1
        return True

    def give_back(self, group: G) -> None:
        """Return a place of the group; those that wait get places, the group with the fewest first."""
        self._free += 1
        self._held[group] -= 1
        if not self._held[group]:
            del self._held[group]
        while self._waiting:
            next_group = min(self._waiting, key=self._held.__getitem__)
            if not self.may_take(next_group):
                return
            waiting = self._waiting[next_group]
            place = waiting.popleft()
            if not waiting:
                del self._waiting[next_group]
            if not place.cancelled():
                self.try_take(next_group)
                place.set_result(None)

    @contextlib.asynccontextmanager
    async def hold(self, group: G) -> AsyncIterator[None]:
        """Wait for a place, and hold it."""
        if group in self._waiting or not self.try_take(group):
            await self._wait(group)
        try:
            yield
        finally:
            self.give_back(group)

    async def _wait(self, group: G) -> None:
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(group, deque()).append(place)
        try:
            await place
        except asyncio.CancelledError:
            if not place.cancelled():  # it was given a moment ago
                self.give_back(group)
            raise
