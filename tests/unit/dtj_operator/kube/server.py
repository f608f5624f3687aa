"""A small API server on a real socket that answers from a script, including faults.

It stores no objects and knows no rules. What it cannot prove (conflicts, validation, roles, real watches),
the integration tests prove with a real API server.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from kubernetes.aio.client import Configuration

Json = dict[str, Any]
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass
class Server:
    """`script` is consumed from its front; `asked` remembers every request."""

    script: list[Handler] = field(default_factory=list)
    asked: list[tuple[str, str, dict[str, str], Any]] = field(default_factory=list)
    url: str = ""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        raw = await request.text()
        body = json.loads(raw) if raw else None
        self.asked.append((request.method, request.path, dict(request.query), body))
        if not self.script:
            return web.Response(status=500, text="the script has no answer for this request")
        return await self.script.pop(0)(request)

    @property
    def config(self) -> Configuration:
        config = Configuration()
        config.host = self.url
        return config


@asynccontextmanager
async def serving(*script: Handler) -> AsyncIterator[Server]:
    server = Server(list(script))
    app = web.Application()
    app.router.add_route("*", "/{rest:.*}", server.handle)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield server
    finally:
        await runner.cleanup()


def says(body: Json, status: int = 200, **headers: str) -> Handler:
    async def handler(_: web.Request) -> web.StreamResponse:
        return web.json_response(
            body, status=status, headers={k.replace("_", "-"): v for k, v in headers.items()}
        )

    return handler


def refuses(status: int, reason: str = "", message: str = "", **headers: str) -> Handler:
    """Answer with a Status as the API server does."""
    return says({"kind": "Status", "reason": reason, "message": message}, status, **headers)


def lacks(kind: str, name: str) -> Handler:
    """Answer as the API server does if there is no object of this kind (plural) and name."""
    message = f'{kind} "{name}" not found'
    details = {"kind": kind, "name": name}
    return says({"kind": "Status", "reason": "NotFound", "message": message, "details": details}, 404)


async def stall(_: object) -> Any:
    """Send nothing more, and keep the connection open."""
    await asyncio.Event().wait()


def hangs_up() -> Handler:
    """Cut the connection without an answer."""

    async def handler(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    return handler


def streams(*lines: Json | bytes, then: Handler | None = None) -> Handler:
    """Answer a watch with these lines; then end it normally, or as `then` does."""

    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for line in lines:
            await response.write(line if isinstance(line, bytes) else json.dumps(line).encode() + b"\n")
        if then is not None:
            await then(request)
        return response

    return handler
