"""HTTP sessions that leave no socket open.

Closing a TLS connection takes a few iterations of the event loop. A test's own loop no longer runs then, so
the garbage collector closes the socket, with a warning in a later test. This session waits for every socket.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator
from typing import Any

import aiohttp

FAREWELL_S = 60.0


@contextlib.asynccontextmanager
async def session(tls: ssl.SSLContext, **options: Any) -> AsyncIterator[aiohttp.ClientSession]:
    """Open a session without a limit on connections; `options` are aiohttp's."""
    sockets: list[socket.socket] = []

    def make(address: tuple[Any, ...]) -> socket.socket:
        made = socket.socket(*address[:3])
        made.setblocking(False)
        sockets.append(made)
        return made

    connector = aiohttp.TCPConnector(ssl=tls, limit=0, socket_factory=make)
    try:
        async with aiohttp.ClientSession(connector=connector, **options) as opened:
            yield opened
            await connector.close(abort_ssl=True)
    finally:
        async with asyncio.timeout(FAREWELL_S):
            while any(each.fileno() != -1 for each in sockets):  # noqa: ASYNC110 - a socket has no event for it
                await asyncio.sleep(0.01)


def hang_up(answer: aiohttp.ClientResponse) -> None:
    """Drop the connection of a response that does not end by itself."""
    if answer.connection is not None and answer.connection.transport is not None:
        answer.connection.transport.abort()
