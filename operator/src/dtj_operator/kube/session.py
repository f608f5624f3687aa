"""HTTP sessions with the API server's credentials, without the layers of the official client above them.

A session has no limit of connections: every open watch holds one, and there may be hundreds of watched
namespaces. Who sends requests limits how many there are at a time.
"""

from asyncio.sslproto import SSLProtocol

import aiohttp
from aiohttp import ClientMiddlewareType
from kubernetes.aio.client import Configuration
from kubernetes.aio.client.rest import RESTClientObject

READ_BUFFER = 2**21  # bytes of an answer that may arrive before it is read; lists of large pods are long
# Bytes that asyncio reads at once. Each connection has a buffer of this size: with asyncio's own 256 KiB, the
# watches of 250 namespaces would take half of the chart's memory limit. A TLS record has at most 16 KiB.
SSLProtocol.max_size = 2**16


def open_session(config: Configuration, *middlewares: ClientMiddlewareType) -> aiohttp.ClientSession:
    """Open a session in the event loop that uses it; requests bring their own token."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, ssl=RESTClientObject(config).ssl_context),
        cookie_jar=aiohttp.DummyCookieJar(),
        proxy=config.proxy,
        read_bufsize=READ_BUFFER,
        middlewares=middlewares,
    )
