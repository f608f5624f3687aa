"""A proxy between a client and the API server that misbehaves on demand, as networks and busy servers do.

A fault says which requests it hits, how often, and how: an HTTP status instead of an answer, an answer that
is lost after the server has acted, or one that comes late. Open watches can be cut or fall silent at any
moment, and their lines can be lost, doubled or told in another order.
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

    matches  chooses requests
    status   answer with this HTTP status and pass nothing on; 0 passes the request on and loses the answer
    times    how many requests it hits
    headers  of the answer
    late_s   only late: pass the request on after so many seconds, and the answer back
    """

    matches: Callable[[web.Request], bool]
    status: int
    times: int = 1
    headers: tuple[tuple[str, str], ...] = ()
    late_s: float = 0.0


Mangle = Callable[[bytes], list[bytes]]  # what becomes of a line of a watch


class FaultProxy:
    """Forwards everything to `target`, unless a fault is due.

    url      where it listens, plain HTTP on loopback
    hits     how many requests each kind of fault has hit, by status; "cut" for watches, "late" for delays
    mangle   makes, for each watch, what decides about its lines
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
        """Whether watches are open and say nothing, as behind a firewall that forgot them."""
        return not self._speaks.is_set()

    @silent.setter
    def silent(self, silent: bool) -> None:
        if silent:
            self._speaks.clear()
        else:
            self._speaks.set()

    def inject(self, *faults: Fault) -> None:
        """Have these happen."""
        self._faults.extend(faults)

    def clear(self) -> None:
        """Have nothing more happen."""
        self._faults.clear()

    def cut_watches(self) -> int:
        """Break every open watch in the middle and return how many there were."""
        watches, self._watches = self._watches, set()
        for connection in watches:
            connection.abort()
        self.hits["cut"] += len(watches)
        return len(watches)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Forward one request, or not."""
        fault = next((each for each in self._faults if each.times and each.matches(request)), None)
        if fault is not None:
            fault.times -= 1
            self.hits["late" if fault.late_s else fault.status] += 1
            if fault.late_s:
                await asyncio.sleep(fault.late_s)
                fault = None
            elif fault.status:
                return refusal(fault, stream=is_watch(request))
        body = await request.read() or None  # else aiohttp invents a content type for it
        headers = {k: v for k, v in request.headers.items() if k.lower() not in HOP_BY_HOP}
        url = f"{self._target}{request.raw_path}"
        try:
            async with self._session.request(request.method, url, data=body, headers=headers) as answer:
                if fault is None:
                    return await self._relay(request, answer)
                await answer.read()  # the server has acted by now
        except (aiohttp.ClientError, OSError):
            pass  # the server is away: what a client without a proxy would see is a broken connection
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
            for told in mangle(line):
                await self._speaks.wait()
                yield told

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
    """Return the API server's own form of an error; that history is too old it says inside of a watch."""
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
    """Mangle streams: so many lines, from 0 to 1, are lost, come twice, or come after the next one."""

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
    """Tell every line once and in order."""
    return lambda line: [line]


def is_watch(request: web.Request) -> bool:
    """Whether a request opens a watch."""
    return request.query.get("watch") in ("true", "1")


def watching(resource: str) -> Callable[[web.Request], bool]:
    """Return a predicate: a watch of this resource."""
    return lambda request: is_watch(request) and request.path.endswith(f"/{resource}")


def calling(method: str, resource: str) -> Callable[[web.Request], bool]:
    """Return a predicate: an ordinary call of this method on this resource, or on a named one."""
    return lambda request: (
        request.method == method and not is_watch(request) and f"/{resource}" in request.path
    )
