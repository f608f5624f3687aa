"""HTTP sessions that leave no socket behind.

Closing a TLS connection takes a few turns of the event loop, which a test's own loop no longer has; the
garbage collector then closes the socket, with a warning in a later test. Here the end waits for every socket.
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
            while any(each.fileno() != -1 for each in sockets):  # noqa: ASYNC110 - a socket tells nobody
                await asyncio.sleep(0.01)


def hang_up(answer: aiohttp.ClientResponse) -> None:
    """Drop the connection of an answer that goes on and on."""
    if answer.connection is not None and answer.connection.transport is not None:
        answer.connection.transport.abort()
