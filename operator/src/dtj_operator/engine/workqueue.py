"""A keyed, de-duplicating queue: a key waits at most once and is worked on by at most one worker.

A thousand events about one job become one look at it. Events that come while somebody works on the key put
it back afterwards. Runs on one event loop, so it needs no locks. Before it stand the watches, after it the
workers.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Hashable
from random import Random
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

FIRST_RETRY_S = 0.2
LONGEST_RETRY_S = 60.0
JITTER = 0.2  # of the delay, either way, so that keys that failed together do not come back together


class WorkQueue(Generic[K]):
    """Keys to look at: now (`add`), later (`add_after`), or after a failure (`retry`)."""

    def __init__(
        self, random: Random, *, first_s: float = FIRST_RETRY_S, longest_s: float = LONGEST_RETRY_S
    ) -> None:
        self._random, self._first_s, self._longest_s = random, first_s, longest_s
        self._ready: asyncio.Queue[K] = asyncio.Queue()
        self._since: dict[K, float] = {}  # keys that are waiting or were added while being worked on
        self._busy: set[K] = set()
        self._timers: dict[K, asyncio.TimerHandle] = {}
        self._failures: dict[K, int] = {}

    def __len__(self) -> int:
        return len(self._since)

    @property
    def busy(self) -> int:
        return len(self._busy)

    def oldest_s(self) -> float:
        """How long the key that waits longest has waited, seconds."""
        first = next(iter(self._since.values()), None)
        return 0.0 if first is None else asyncio.get_running_loop().time() - first

    def add(self, key: K) -> None:
        if key in self._since:
            return
        self._since[key] = asyncio.get_running_loop().time()
        if key not in self._busy:
            self._ready.put_nowait(key)

    def add_after(self, key: K, delay_s: float) -> None:
        """Add the key later; of several delays the earliest is kept."""
        loop = asyncio.get_running_loop()
        due, timer = loop.time() + max(0.0, delay_s), self._timers.get(key)
        if timer is not None and timer.when() <= due:
            return
        if timer is not None:
            timer.cancel()
        self._timers[key] = loop.call_at(due, self._fire, key)

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
        key = await self._ready.get()
        waited = asyncio.get_running_loop().time() - self._since.pop(key)
        self._busy.add(key)
        try:
            yield key, waited
        finally:
            self._busy.discard(key)
            if key in self._since:
                self._ready.put_nowait(key)

    def close(self) -> None:
        """Cancel what was to come later."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _fire(self, key: K) -> None:
        del self._timers[key]
        self.add(key)
