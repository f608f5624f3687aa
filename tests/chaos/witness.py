"""Watches jobs and their children in one namespace from before the first job, and records everything.

It reads the API server's own watch streams, directly and as admin: no proxy or operator in between. When a
stream breaks, it lists again and continues. Of an object that vanished meanwhile it then knows only that it
is gone, not its last state.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Any

import aiohttp

from tests.chaos.invariants import JOB, POD, POLICY, SERVICE, Event, remains, violations
from tests.integration.api import JOBS, PODS, POLICIES, SERVICES, WITHIN_S, Api, ApiError

Json = dict[str, Any]
FOLDERS = {JOB: JOBS, POD: PODS, SERVICE: SERVICES, POLICY: POLICIES}


class Witness:
    """Everything recorded.

    events   in order of arrival; `invariants` sorts them
    gaps     how many times a stream broke, so that events may be missing
    """

    def __init__(self, api: Api, namespace: str) -> None:
        self._api, self._namespace = api, namespace
        self.events: list[Event] = []
        self._latest: dict[str, Event] = {}
        self.gaps = 0
        self._changed = asyncio.Condition()

    def violations(self) -> list[str]:
        """Return all violations so far."""
        return violations(self.events)

    async def settled(self, *, within_s: float = WITHIN_S) -> None:
        """Wait until every job is as its spec asks and no orphan is left; otherwise fail."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s), self._changed:
                await self._changed.wait_for(lambda: not self._remains())
                return
        raise AssertionError("\n".join([f"not settled within {within_s} s:", *self._remains()]))

    @property
    def births(self) -> int:
        """Return the number of pods created."""
        return sum(event.kind == POD and event.type == "ADDED" for event in self.events)

    async def until(self, holds: Callable[[Witness], bool], *, within_s: float = WITHIN_S) -> None:
        """Wait until a condition on the history holds."""
        async with asyncio.timeout(within_s), self._changed:
            await self._changed.wait_for(lambda: holds(self))

    async def follow(self, kind: str, begun: asyncio.Event) -> None:
        """Watch one kind, endlessly."""
        folder = FOLDERS[kind].format(self._namespace)
        while True:
            with contextlib.suppress(ApiError, aiohttp.ClientError, OSError, KeyError, ValueError):
                await self._follow(kind, folder, begun)
            self.gaps += 1
            await asyncio.sleep(0.1)  # the server is away or restarting

    async def _follow(self, kind: str, folder: str, begun: asyncio.Event) -> None:
        listed = await self._api.get(folder)
        await self._replace(kind, listed)
        begun.set()
        version = listed["metadata"]["resourceVersion"]
        async with aclosing(self._api.follow(folder, version)) as events:
            async for type_, seen in events:
                if type_ == "ERROR":
                    return
                if type_ != "BOOKMARK":
                    await self._add(Event(kind, type_, seen))

    def _remains(self) -> list[str]:
        return remains(self._latest.values())

    async def _replace(self, kind: str, listed: Json) -> None:
        here = {item["metadata"]["uid"] for item in listed["items"]}
        last = {uid: event for uid, event in self._latest.items() if event.kind == kind}
        for uid, event in last.items():
            if uid not in here:
                # When is unknown, but before its successor was created: use the last version seen.
                await self._add(Event(kind, "DELETED", event.object))
        for item in listed["items"]:
            await self._add(Event(kind, "MODIFIED" if item["metadata"]["uid"] in last else "ADDED", item))

    async def _add(self, event: Event) -> None:
        self.events.append(event)
        if event.type == "DELETED":
            self._latest.pop(event.uid, None)
        else:
            self._latest[event.uid] = event
        async with self._changed:
            self._changed.notify_all()


@contextlib.asynccontextmanager
async def watching(api: Api, namespace: str) -> AsyncIterator[Witness]:
    """Start a witness for a namespace."""
    witness = Witness(api, namespace)
    begun = [asyncio.Event() for _ in FOLDERS]
    tasks = [
        asyncio.create_task(witness.follow(kind, event)) for kind, event in zip(FOLDERS, begun, strict=True)
    ]
    try:
        for event in begun:
            await event.wait()
        yield witness
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
