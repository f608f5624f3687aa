"""A keyed, de-duplicating queue: a key waits at most once and is worked on by at most one worker.

A thousand events about one job become one look at it. Events that come while somebody works on the key put
it back afterwards. Keys come in the order in which they ought to be looked at: who is patient lets others go
first, but not for ever. Runs on one event loop, so it needs no locks. Before it stand the watches, after it
the workers.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Hashable
from dataclasses import dataclass
from itertools import count
from random import Random
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

FIRST_RETRY_S = 0.2
LONGEST_RETRY_S = 60.0
JITTER = 0.2  # of the delay, either way, so that keys that failed together do not come back together


@dataclass(frozen=True, slots=True)
class _Place:
    """A key's place: since when it waits, until when it should have been taken, and its number in the row."""

    since: float
    until: float
    number: int


class WorkQueue(Generic[K]):
    """Keys to look at: now (`add`), later (`add_after`), or after a failure (`retry`)."""

    def __init__(
        self, random: Random, *, first_s: float = FIRST_RETRY_S, longest_s: float = LONGEST_RETRY_S
    ) -> None:
        self._random, self._first_s, self._longest_s = random, first_s, longest_s
        self._ready: asyncio.PriorityQueue[tuple[float, int, K]] = asyncio.PriorityQueue()
        self._numbers = count()
        self._waiting: dict[K, _Place] = {}  # keys that are waiting or were added while being worked on
        self._busy: set[K] = set()
        self._timers: dict[K, tuple[asyncio.TimerHandle, float]] = {}  # and how patient the key will be
        self._failures: dict[K, int] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def busy(self) -> int:
        return len(self._busy)

    def oldest_s(self) -> float:
        """How long the key that waits longest has waited, seconds."""
        first = next(iter(self._waiting.values()), None)
        return 0.0 if first is None else asyncio.get_running_loop().time() - first.since

    def add(self, key: K, *, patience_s: float = 0.0) -> None:
        """Add the key; for `patience_s` it lets those go first that are in more of a hurry."""
        now = asyncio.get_running_loop().time()
        place = self._waiting.get(key)
        if place is not None and place.until <= now + patience_s:
            return
        place = _Place(place.since if place else now, now + patience_s, next(self._numbers))
        self._waiting[key] = place
        if key not in self._busy:
            self._put(key, place)

    def add_after(self, key: K, delay_s: float, *, patience_s: float = 0.0) -> None:
        """Add the key later; of several delays the earliest is kept, and the least patience."""
        loop = asyncio.get_running_loop()
        due, known = loop.time() + max(0.0, delay_s), self._timers.get(key)
        if known is not None:
            timer, patience = known
            if timer.when() <= due and patience <= patience_s:
                return
            timer.cancel()
            due, patience_s = min(due, timer.when()), min(patience, patience_s)
        self._timers[key] = loop.call_at(due, self._fire, key), patience_s

    def retry(self, key: K, at_least_s: float = 0.0) -> float:
        """Add the key after a back-off that doubles with each failure; return it in seconds."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        delay = min(self._longest_s, self._first_s * 2.0 ** min(failures, 60))
        delay = max(at_least_s, delay * self._random.uniform(1 - JITTER, 1 + JITTER))
        self.add_after(key, delay)
        return delay

    def hasten(self) -> None:
        """What stood in the way has gone: look at once at what has failed."""
        for key in list(self._failures):
            self.add(key)

    def forget(self, key: K) -> None:
        """Forget the failures of a key that went well."""
        self._failures.pop(key, None)

    @contextlib.asynccontextmanager
    async def take(self) -> AsyncIterator[tuple[K, float]]:
        """Hold the next key; yields it with the seconds that it waited."""
        key, place = await self._next()
        waited = asyncio.get_running_loop().time() - place.since
        self._busy.add(key)
        try:
            yield key, waited
        finally:
            self._busy.discard(key)
            if key in self._waiting:
                self._put(key, self._waiting[key])

    def close(self) -> None:
        """Cancel what was to come later."""
        for timer, _ in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _put(self, key: K, place: _Place) -> None:
        self._ready.put_nowait((place.until, place.number, key))

    async def _next(self) -> tuple[K, _Place]:
        """Take the next key; places that it has left for better ones are skipped."""
        while True:
            _, number, key = await self._ready.get()
            place = self._waiting.get(key)
            if place is not None and place.number == number:
                return key, self._waiting.pop(key)

    def _fire(self, key: K) -> None:
        _, patience_s = self._timers.pop(key)
        self.add(key, patience_s=patience_s)
