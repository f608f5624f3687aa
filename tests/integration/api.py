"""An asyncio client of the API server for tests: dicts in, dicts out, and watches; as admin."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing
from typing import Any

import aiohttp

from dtj_operator.kube import stream
from tests.integration.controlplane import ControlPlane, token
from tests.support.connections import hang_up, session

Json = dict[str, Any]
WITHIN_S = 120.0  # generous: it only decides how long a failing test takes

JOBS = "/apis/dtj.dev/v1alpha1/namespaces/{}/distributedtrainingjobs"
PODS = "/api/v1/namespaces/{}/pods"
SERVICES = "/api/v1/namespaces/{}/services"
POLICIES = "/apis/networking.k8s.io/v1/namespaces/{}/networkpolicies"
EVENTS = "/apis/events.k8s.io/v1/namespaces/{}/events"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/{}/leases"


class NeverHappenedError(AssertionError):
    """The deadline passed; the message holds the last state that was seen."""


class Api:
    """A client of one control plane."""

    def __init__(self, opened: aiohttp.ClientSession) -> None:
        self._session = opened

    async def get(self, path: str, **query: str) -> Json:
        """Return an object, or a list of them."""
        return await self.call("GET", path, query=query)

    async def items(self, path: str, **query: str) -> list[Json]:
        """Return the objects of a list."""
        items: list[Json] = (await self.get(path, **query))["items"]
        return items

    async def create(self, path: str, body: Mapping[str, Any]) -> Json:
        """Create an object and return it as stored."""
        return await self.call("POST", path, body)

    async def create_patiently(self, path: str, body: Mapping[str, Any]) -> Json:
        """Create an object; retry until the API server accepts it, because its caches may be out of date."""
        deadline = time.monotonic() + WITHIN_S
        while True:
            try:
                return await self.create(path, body)
            except ApiError:
                if time.monotonic() > deadline:
                    raise
            await asyncio.sleep(0.1)  # between two tries

    async def patch(self, path: str, body: Mapping[str, Any]) -> Json:
        """Merge a patch and return the changed object."""
        return await self.call("PATCH", path, body, content="application/merge-patch+json")

    async def delete(self, path: str, **options: Any) -> Json:
        """Delete an object."""
        return await self.call("DELETE", path, options)

    async def call(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        query: Mapping[str, str] | None = None,
        content: str = "application/json",
    ) -> Json:
        """Send any request; raise ApiError for an HTTP status of 400 or more."""
        return await self._send(method, path, None if body is None else json.dumps(body), query, content)

    async def create_text(self, path: str, body: str) -> None:
        """Create an object whose JSON is too deep for Python; the answer is not read."""
        headers = {"Content-Type": "application/json"}
        async with self._session.post(path, data=body, headers=headers) as answer:
            if answer.status >= 400:
                raise ApiError(answer.status, f"POST {path}: {await answer.text()}")

    async def _send(
        self, method: str, path: str, data: str | None, query: Mapping[str, str] | None, content: str
    ) -> Json:
        headers = {"Content-Type": content}
        while True:
            async with self._session.request(
                method, path, params=query, data=data, headers=headers
            ) as answer:
                if answer.status < 400:
                    found: Json = await answer.json()
                    return found
                if answer.status != 429:
                    raise ApiError(answer.status, f"{method} {path}: {await answer.text()}")
                # As after a change of a CRD, while its storage is set up again: every client has to wait.
                await asyncio.sleep(float(answer.headers.get("Retry-After", "1")))

    async def watch(self, path: str, **query: str) -> AsyncGenerator[tuple[str, Json]]:
        """List, then watch: yield (type, object) until the stream ends, existing objects first, as ADDED."""
        listed = await self.get(path, **query)
        for item in listed["items"]:
            yield "ADDED", item
        version = listed["metadata"]["resourceVersion"]
        async with aclosing(self.follow(path, version, query)) as events:
            async for event in events:
                yield event

    async def watch_on(self, path: str, **query: str) -> AsyncGenerator[tuple[str, Json]]:
        """Watch for ever: list again wherever the stream ends, as it does when the CRD changes."""
        while True:
            try:
                async with aclosing(self.watch(path, **query)) as events:
                    async for event in events:
                        yield event
            except ApiError as error:
                if error.status != 410:  # the version of the list is forgotten
                    raise

    async def follow(
        self, path: str, version: str, query: Mapping[str, str] | None = None
    ) -> AsyncGenerator[tuple[str, Json]]:
        """Watch from a version on: yield (type, object) until the stream ends."""
        params = {**(query or {}), "watch": "true", "resourceVersion": version}
        async with self._session.get(path, params=params) as answer:
            try:
                if answer.status == 429:  # as in _send; nothing was missed, the stream just ends early
                    await asyncio.sleep(float(answer.headers.get("Retry-After", "1")))
                    return
                if answer.status >= 400:
                    raise ApiError(answer.status, f"GET {path}: {await answer.text()}")
                async for line in stream.lines(answer.content):
                    event = json.loads(line)
                    kind, seen = event["type"], event["object"]
                    if kind == "ERROR":
                        raise ApiError(seen["code"], f"GET {path}: {seen['message']}")
                    yield kind, seen
            finally:
                hang_up(answer)

    async def until(self, path: str, holds: Callable[[Json], bool], *, within_s: float = WITHIN_S) -> Json:
        """Watch one object until `holds` is true for it, and return it; it may not exist yet."""
        folder, _, name = path.rpartition("/")
        last: Json | None = None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                async with aclosing(self.watch_on(folder, fieldSelector=f"metadata.name={name}")) as events:
                    async for kind, seen in events:
                        last = seen
                        if kind != "DELETED" and holds(seen):
                            return seen
        state = json.dumps((last or {}).get("status"), indent=1)
        raise NeverHappenedError(f"{path} never got there within {within_s} s; last: {state}")

    async def until_any(self, path: str, holds: Callable[[Json], bool]) -> Json:
        """Watch a collection until `holds` is true for an object, and return that object."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(WITHIN_S):
                async with aclosing(self.watch_on(path)) as events:
                    async for kind, seen in events:
                        if kind != "DELETED" and holds(seen):
                            return seen
        raise NeverHappenedError(f"no object of {path} got there within {WITHIN_S} s")

    async def until_answered(self, path: str, status: int) -> None:
        """GET until the status is this one: a change of rights takes effect a moment later."""
        deadline = time.monotonic() + WITHIN_S
        while (found := await self.answer(path)) != status:
            assert time.monotonic() < deadline, f"GET {path} returns {found}, not {status}"
            await asyncio.sleep(0.02)  # between two requests

    async def answer(self, path: str) -> int:
        """Return the HTTP status of a GET."""
        async with self._session.get(path) as answer:
            return answer.status

    async def until_gone(self, path: str, *, within_s: float = WITHIN_S) -> None:
        """Wait until there is no such object."""
        folder, _, name = path.rpartition("/")
        only = {"fieldSelector": f"metadata.name={name}"}
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while (listed := await self.get(folder, **only))["items"]:  # a stream ends if the CRD changes
                    version = listed["metadata"]["resourceVersion"]
                    async with aclosing(self.follow(folder, version, only)) as events:
                        async for kind, _seen in events:
                            if kind == "DELETED":
                                return
                return
        raise NeverHappenedError(f"{path} is still there after {within_s} s")


class ApiError(Exception):
    """The API server refused a request."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@contextlib.asynccontextmanager
async def connect(plane: ControlPlane, user: str = "admin") -> AsyncIterator[Api]:
    """Open a client for a user of the control plane."""
    headers = {"Authorization": f"Bearer {token(user)}"}
    timeout = aiohttp.ClientTimeout(total=None, connect=WITHIN_S)
    options = {"base_url": plane.url, "headers": headers, "timeout": timeout, "read_bufsize": 2**24}
    async with session(plane.tls(), **options) as opened:
        yield Api(opened)
