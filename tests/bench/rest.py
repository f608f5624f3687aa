"""A minimal API client for benchmarks, over plain HTTP: post, delete collections, count watch events."""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from http import HTTPStatus
from typing import Any

import aiohttp

CONNECTIONS = 16
NO_LIMIT = aiohttp.ClientTimeout(total=None)  # a watch lasts as long as the server lets it


class ExpiredError(RuntimeError):
    """The API server no longer has the events since the version of a watch."""


class Rest:
    """A session with one API server."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    async def post_all(self, bodies: Iterable[tuple[str, Mapping[str, Any]]]) -> None:
        """Post (path, body) pairs over CONNECTIONS connections, started in order."""
        queue = iter(bodies)

        async def sender() -> None:
            for path, body in queue:
                async with self._session.post(path, json=body) as answer:
                    if answer.status != 201:
                        raise RuntimeError(f"POST {path}: {answer.status} {await answer.text()}")

        async with asyncio.TaskGroup() as group:
            for _ in range(CONNECTIONS):
                group.create_task(sender())

    async def list(self, path: str) -> dict[str, Any]:
        """Return a list, or one object, unchanged."""
        async with self._session.get(path) as answer:
            answer.raise_for_status()
            listed: dict[str, Any] = await answer.json()
            return listed

    async def delete_all(self, path: str) -> None:
        """Delete a collection immediately, without grace period."""
        async with self._session.delete(path, params={"gracePeriodSeconds": "0"}) as answer:
            answer.raise_for_status()

    async def delete_each(self, path: str, names: Iterable[str]) -> None:
        """Delete objects by name over CONNECTIONS connections."""
        queue = iter(names)

        async def sender() -> None:
            for name in queue:
                async with self._session.delete(f"{path}/{name}") as answer:
                    if answer.status not in (200, 202, 404):
                        raise RuntimeError(f"DELETE {path}/{name}: {answer.status} {await answer.text()}")

        async with asyncio.TaskGroup() as group:
            for _ in range(CONNECTIONS):
                group.create_task(sender())

    async def patch(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Apply a merge patch and return the changed object."""
        content = {"Content-Type": "application/merge-patch+json"}
        async with self._session.patch(path, data=json.dumps(body), headers=content) as answer:
            answer.raise_for_status()
            patched: dict[str, Any] = await answer.json()
            return patched

    async def watch(
        self, path: str, version: str, **query: str
    ) -> AsyncGenerator[tuple[str, dict[str, Any]]]:
        """Yield (type, object) from `version` on, endlessly; restarts a watch that a busy API server cuts."""
        while True:
            params = {**query, "watch": "true", "resourceVersion": version}
            async with self._session.get(path, params=params, timeout=NO_LIMIT) as answer:
                if answer.status == HTTPStatus.GONE:
                    raise ExpiredError(path)
                answer.raise_for_status()
                async for line in answer.content:
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        raise ExpiredError(f"the watch of {path} ended: {event['object']}")
                    version = event["object"]["metadata"]["resourceVersion"]
                    yield event["type"], event["object"]

    async def follow(self, path: str, **query: str) -> AsyncGenerator[dict[str, Any]]:
        """Yield every object, and again after each change, forever; lists again where a watch breaks."""
        while True:
            with suppress(ExpiredError, aiohttp.ClientError):
                async with aclosing(self.watch(path, "0", **query)) as events:  # from 0: existing ones first
                    async for _, seen in events:
                        yield seen
            await asyncio.sleep(0.1)

    async def until_running(self, path: str) -> None:
        """Return once every existing pod runs."""
        listed = await self.list(path)
        waiting = {pod["metadata"]["name"] for pod in listed["items"] if pod["status"]["phase"] == "Pending"}
        if not waiting:
            return
        async with aclosing(self.watch(path, listed["metadata"]["resourceVersion"])) as events:
            async for _, pod in events:
                if pod["status"]["phase"] != "Pending":
                    waiting.discard(pod["metadata"]["name"])
                if not waiting:
                    return

    async def until_seen(self, path: str, version: str, kind: str, count: int) -> float:
        """Watch from `version` until `count` events of this kind came; return the monotonic time."""
        async with aclosing(self.watch(path, version)) as events:
            async for seen, _ in events:
                count -= seen == kind
                if count == 0:
                    break
        return time.monotonic()

    async def until_empty(self, path: str) -> None:
        """Return once a collection is empty."""
        listed = await self.list(path)
        if left := len(listed["items"]):
            await self.until_seen(path, listed["metadata"]["resourceVersion"], "DELETED", left)


@asynccontextmanager
async def connect(server: str, tls: ssl.SSLContext, token: str) -> AsyncIterator[Rest]:
    """Open a session as the user of a bearer token."""
    connector = aiohttp.TCPConnector(ssl=tls, limit=0)
    timeout = aiohttp.ClientTimeout(total=600)
    headers = {"Authorization": f"Bearer {token}"}
    async with aiohttp.ClientSession(
        server, connector=connector, timeout=timeout, headers=headers, read_bufsize=1 << 22
    ) as session:
        yield Rest(session)
