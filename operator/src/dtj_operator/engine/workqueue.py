"""A keyed, de-duplicating queue: a key is queued at most once and held by at most one worker.

A thousand events about one job become one reconcile. If a key is added while a worker holds it, it is queued
again afterwards. Keys are taken in order of urgency: keys added with patience yield to urgent ones until it
runs out. The workers are shared by groups of keys: keys of a group that has its share wait beside the others.
Runs on one event loop, so it needs no locks. The watches add keys; the workers take them.
"""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Callable, Hashable
from heapq import heappop, heappush
from itertools import count
from random import Random
from typing import Generic, NamedTuple, TypeVar

from dtj_operator.engine.shares import Shares

K = TypeVar("K", bound=Hashable)

FIRST_BACKOFF_S = 0.2
LONGEST_BACKOFF_S = 60.0
BACKOFF_JITTER = 0.2  # of the delay, either way, so that keys that failed together are not retried together


class _Place(NamedTuple, Generic[K]):
    """A key's place in the queue; as a tuple, the more urgent of two places is the smaller one.

    until    when its patience ends
    number   another one for each place, so the rest is never compared
    since    when the key was queued
    """

    until: float
    number: int
    since: float
    key: K


class WorkQueue(Generic[K]):
    """Keys to reconcile: now (`add`), later (`add_after`), or after a failure (`retry`).

    workers   how many take keys
    group_of  the group of a key; without it each key is a group of its own
    """

    def __init__(
        self,
        random: Random,
        *,
        workers: int = sys.maxsize,
        group_of: Callable[[K], Hashable] = lambda key: key,
    ) -> None:
        self._random, self._group_of, self._shares = random, group_of, Shares[Hashable](workers)
        self._parked: dict[Hashable, list[_Place[K]]] = {}  # heaps of the groups that have their share
        self._ready: asyncio.PriorityQueue[_Place[K]] = asyncio.PriorityQueue()
        self._numbers = count()
        # Of keys that are queued, or were added while a worker holds them.
        self._waiting: dict[K, _Place[K]] = {}
        self._busy: set[K] = set()
        self._timers: dict[K, tuple[asyncio.TimerHandle, float]] = {}  # timer, and when its patience ends
        self._failures: dict[K, int] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, key: K, *, patience_s: float = 0.0) -> None:
        """Add the key; for `patience_s` it yields to more urgent keys."""
        now = asyncio.get_running_loop().time()
        before = self._waiting.get(key)
        if before is not None and before.until <= now + patience_s:
            return
        place = _Place(now + patience_s, next(self._numbers), before.since if before else now, key)
        self._waiting[key] = place
        if key not in self._busy:
            self._ready.put_nowait(place)

    def add_after(self, key: K, delay_s: float, *, patience_s: float = 0.0) -> None:
        """Add the key later; of several calls the earliest time and the earliest end of patience count."""
        loop = asyncio.get_running_loop()
        due, known = loop.time() + max(0.0, delay_s), self._timers.get(key)
        until = due + patience_s
        if known is not None:
            timer, known_until = known
            if timer.when() <= due and known_until <= until:
                return
            timer.cancel()
            due, until = min(due, timer.when()), min(until, known_until)
        self._timers[key] = loop.call_at(due, self._fire, key), until

    def retry(self, key: K, at_least_s: float = 0.0) -> float:
        """Add the key after a back-off that doubles with each failure; return the back-off in seconds.

        Then it yields to urgent keys for as long again: jobs whose requests hang must not occupy all workers.
        """
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        delay = min(LONGEST_BACKOFF_S, FIRST_BACKOFF_S * 2.0 ** min(failures, 60))
        delay = max(at_least_s, delay * self._random.uniform(1 - BACKOFF_JITTER, 1 + BACKOFF_JITTER))
        self.add_after(key, delay, patience_s=delay)
        return delay

    def retry_failed_now(self) -> None:
        """Add all keys that have failed, without their back-off: the cause is gone."""
        for key in list(self._failures):
            self.add(key)

    def reset_backoff(self, key: K) -> None:
        """Reset the back-off of a key after a success."""
        self._failures.pop(key, None)

    @contextlib.asynccontextmanager
    async def take(self) -> AsyncIterator[tuple[K, float]]:
        """Hold the next key; yields it with the seconds that it was queued."""
        place = await self._next()
        key, waited = place.key, asyncio.get_running_loop().time() - place.since
        self._busy.add(key)
        try:
            yield key, waited
        finally:
            self._busy.discard(key)
            if key in self._waiting:
                self._ready.put_nowait(self._waiting[key])
            self._shares.give_back(self._group_of(key))
            self._unpark()

    def close(self) -> None:
        """Cancel all timers."""
        for timer, _ in self._timers.values():
            timer.cancel()
        self._timers.clear()

    async def _next(self) -> _Place[K]:
        """Take the next key; skip places of keys that were moved to a more urgent one."""
        while True:
            place = await self._ready.get()
            if not self._is_current(place):
                continue
            group = self._group_of(place.key)
            if self._shares.try_take(group):
                return self._waiting.pop(place.key)
            heappush(self._parked.setdefault(group, []), place)

    def _is_current(self, place: _Place[K]) -> bool:
        return self._waiting.get(place.key) is place

    def _unpark(self) -> None:
        """A worker is free: put back the next key of each group that may have it."""
        for group, places in list(self._parked.items()):
            while places and self._shares.may_take(group):
                place = heappop(places)
                if self._is_current(place):
                    self._ready.put_nowait(place)
                    break
            if not places:
                del self._parked[group]

    def _fire(self, key: K) -> None:
        _, until = self._timers.pop(key)
        self.add(key, patience_s=max(0.0, until - asyncio.get_running_loop().time()))
