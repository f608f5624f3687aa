"""A proxy between a client and the API server that injects faults of networks and busy servers.

A fault defines which requests it hits, how many, and how: an HTTP error status, a response that is lost after
the server has acted, or a late response. Open watches can be cut or go silent at any time, and their lines
can be lost, duplicated or reordered.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from random import Random

import aiohttp
from aiohttp import web

from tests.support.connections import hang_up, session

HOP_BY_HOP = {"connection", "transfer-encoding", "content-length", "host", "keep-alive"}


@dataclass
class Fault:
    """What happens to the next requests that match.

    matches  whether it hits a request
    status   answer with this HTTP status and do not forward; 0: forward the request, but lose the response
    times    how many requests it hits
    headers  of the response
    late_s   if not 0, only delay: forward the request after this many seconds, and return the response
    """

    matches: Callable[[web.Request], bool]
    status: int
    times: int = 1
    headers: tuple[tuple[str, str], ...] = ()
    late_s: float = 0.0


Mangle = Callable[[bytes], list[bytes]]  # line of a watch -> lines to send instead


class FaultProxy:
    """Forwards everything to `target`, unless a fault is due.

    url      where it listens, plain HTTP on loopback
    hits     number of requests that each kind of fault has hit, by status; "cut": watches, "late": delays
    mangle   makes the Mangle of a watch
    """

    def __init__(self, target: str, tls: ssl.SSLContext) -> None:
        self._target, self._tls = target, tls
        self._faults: list[Fault] = []
        self._watches: set[asyncio.Transport] = set()
        self.hits: Counter[int | str] = Counter()
        self.url = ""
        self.mangle: Callable[[], Mangle] = faithful
        self._speaks = asyncio.Event()
        self._speaks.set()

    @property
    def silent(self) -> bool:
        """Whether open watches get no data, as behind a firewall that has dropped the connections."""
        return not self._speaks.is_set()

    @silent.setter
    def silent(self, silent: bool) -> None:
        if silent:
            self._speaks.clear()
        else:
            self._speaks.set()

    def inject(self, *faults: Fault) -> None:
        """Add these faults."""
        self._faults.extend(faults)

    def clear(self) -> None:
        """Remove all faults."""
        self._faults.clear()

    def cut_watches(self) -> int:
        """Break every open watch in the middle and return how many there were."""
        watches, self._watches = self._watches, set()
        for connection in watches:
            connection.abort()
        self.hits["cut"] += len(watches)
        return len(watches)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Forward one request, unless a fault hits it."""
        fault = next((each for each in self._faults if each.times and each.matches(request)), None)
        if fault is not None:
            fault.times -= 1
            self.hits["late" if fault.late_s else fault.status] += 1
            if fault.late_s:
                await asyncio.sleep(fault.late_s)
                fault = None
            elif fault.status:
                return refusal(fault, stream=is_watch(request))
        body = await request.read() or None  # else aiohttp adds a content type
        headers = {k: v for k, v in request.headers.items() if k.lower() not in HOP_BY_HOP}
        url = f"{self._target}{request.raw_path}"
        try:
            async with self._session.request(request.method, url, data=body, headers=headers) as answer:
                if fault is None:
                    return await self._relay(request, answer)
                await answer.read()  # the server has acted by now
        except (aiohttp.ClientError, OSError):
            pass  # the server is unavailable: break the connection, as a client without a proxy would see
        if request.transport is not None:
            request.transport.abort()
        return web.Response()

    async def _relay(self, request: web.Request, answer: aiohttp.ClientResponse) -> web.StreamResponse:
        kept = {k: v for k, v in answer.headers.items() if k.lower() not in HOP_BY_HOP}
        reply = web.StreamResponse(status=answer.status, headers=kept)
        await reply.prepare(request)
        connection = request.transport
        if connection is not None and is_watch(request):
            self._watches.add(connection)
        try:
            async for chunk in self._lines(answer) if is_watch(request) else answer.content.iter_any():
                await reply.write(chunk)
            await reply.write_eof()
        except (ConnectionError, aiohttp.ClientError):
            pass  # the client has gone, or the watch was cut
        finally:
            hang_up(answer)
            if connection is not None:
                self._watches.discard(connection)
        return reply

    async def _lines(self, answer: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
        begin = self.mangle
        mangle = begin()
        async for line in answer.content:
            if begin is not self.mangle:
                begin = self.mangle
                mangle = begin()
            for sent in mangle(line):
                await self._speaks.wait()
                yield sent

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[FaultProxy]:
        """Listen until the block ends."""
        app = web.Application(client_max_size=2**24)
        app.router.add_route("*", "/{path:.*}", self.handle)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0, handler_cancellation=True)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        timeout = aiohttp.ClientTimeout(total=None)
        async with session(
            self._tls, timeout=timeout, auto_decompress=False, read_bufsize=2**22
        ) as self._session:
            try:
                yield self
            finally:
                self.cut_watches()
                await asyncio.wait_for(runner.cleanup(), 60)


def refusal(fault: Fault, *, stream: bool) -> web.Response:
    """Return an error in the API server's format. In a watch, status 410 is an ERROR event in the stream."""
    reasons = {409: "Conflict", 410: "Expired", 429: "TooManyRequests", 500: "InternalError"}
    said = {
        "apiVersion": "v1",
        "kind": "Status",
        "status": "Failure",
        "reason": reasons.get(fault.status, "Unknown"),
        "message": f"injected {fault.status}",
        "code": fault.status,
    }
    inside = stream and fault.status == 410
    text = json.dumps({"type": "ERROR", "object": said} if inside else said)
    status, headers = 200 if inside else fault.status, dict(fault.headers)
    return web.Response(status=status, headers=headers, text=f"{text}\n", content_type="application/json")


def losing(
    chance: Random, *, lost: float = 0.0, doubled: float = 0.0, swapped: float = 0.0
) -> Callable[[], Mangle]:
    """Mangle watches: these shares of lines (0 to 1) are lost, sent twice, or swapped with the next line."""

    def begin() -> Mangle:
        held: list[bytes] = []

        def mangle(line: bytes) -> list[bytes]:
            drawn = chance.random()
            before = [*held]
            held.clear()
            if drawn < lost:
                return before
            if drawn < lost + doubled:
                return [line, *before, line]
            if drawn < lost + doubled + swapped:
                held.append(line)
                return before
            return [line, *before]

        return mangle

    return begin


def faithful() -> Mangle:
    """Send every line once and in order."""
    return lambda line: [line]


def is_watch(request: web.Request) -> bool:
    """Whether a request opens a watch."""
    return request.query.get("watch") in ("true", "1")


def watching(resource: str) -> Callable[[web.Request], bool]:
    """Return a predicate: the request is a watch of this resource."""
    return lambda request: is_watch(request) and request.path.endswith(f"/{resource}")


def calling(method: str, resource: str) -> Callable[[web.Request], bool]:
    """Return a predicate: a request, not a watch, with this method for this resource or one object."""
    return lambda request: (
        request.method == method and not is_watch(request) and f"/{resource}" in request.path
    )
