"""What a connection to the API server takes."""

import asyncio
import ssl
from asyncio.sslproto import SSLProtocol

from dtj_operator.kube import session  # noqa: F401 - it sets the size


async def test_connection_takes_little_memory() -> None:
    """An operator that watches hundreds of namespaces has four connections for each of them."""
    loop, context = asyncio.get_running_loop(), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    own, waiter = asyncio.Protocol(), loop.create_future()
    connection = SSLProtocol(loop, own, context, waiter, server_hostname="localhost")
    size = len(connection.get_buffer(-1))
    connection.connection_lost(None)

    assert size <= 2**16
