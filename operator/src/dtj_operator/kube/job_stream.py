"""The HTTP session of kopf's watch of the jobs: of each job, kopf gets only the name and the version.

kopf ends if it cannot decode an answer, or if a watch reports an error that it does not know. So no job
reaches it as a whole, however large or deeply nested it is, and after any error of a watch kopf makes a new
list. What the operator knows already, such as its own writes, reaches kopf as a bookmark: kopf starts no task
for it, but continues the watch from there.
"""

import logging
from collections.abc import AsyncIterator, Callable
from typing import Any, cast

import aiohttp
import msgspec
from aiohttp import ClientHandlerType, ClientRequest, ClientResponse
from kubernetes.aio.client import Configuration

from dtj_operator.kube import stream, wire
from dtj_operator.kube.api import METADATA, METADATA_LIST
from dtj_operator.kube.session import open_session
from dtj_operator.model import names
from dtj_operator.model.names import Key

_RELIST = msgspec.json.encode({"type": "ERROR", "object": {"code": 410}}) + b"\n"

_log = logging.getLogger(__name__)


def session(config: Configuration, is_news: Callable[[Key, str], bool]) -> aiohttp.ClientSession:
    """Open a session with these credentials, in the event loop that uses it.

    is_news   whether the operator does not know this version of a job yet
    """

    async def reduce_jobs(request: ClientRequest, send: ClientHandlerType) -> ClientResponse:
        """Reduce the answers that contain jobs; the others are about what the API server serves."""
        if not request.url.path.endswith(f"/{names.PLURAL}"):
            return await send(request)
        request.headers["Accept"] = METADATA if "watch" in request.url.query else METADATA_LIST
        response = await send(request)
        if response.status == 200:
            response.content = cast(aiohttp.StreamReader, _Reduced(response.content, is_news))
        return response

    opened = open_session(config, reduce_jobs)
    if token := (config.api_key or {}).get("BearerToken"):
        opened.headers["Authorization"] = token
    return opened


class _Reduced:
    """The content of an answer: `read` returns a reduced list, `iter_chunked` a reduced watch."""

    def __init__(self, content: aiohttp.StreamReader, is_news: Callable[[Key, str], bool]) -> None:
        self._content, self._is_news = content, is_news

    def __getattr__(self, name: str) -> Any:
        return getattr(self._content, name)

    async def read(self) -> bytes:
        return msgspec.json.encode(wire.decode_names(await self._content.read()))

    async def iter_chunked(self, _: int) -> AsyncIterator[bytes]:
        async for line in stream.lines(self._content):
            yield _reduced_event(line, self._is_news)


def _reduced_event(line: bytes, is_news: Callable[[Key, str], bool]) -> bytes:
    try:
        event = wire.decode_event(line)
        if event.type == "ERROR":
            failure = wire.decode_failure(event.object)
            _log.info("watch of the jobs ended; relisting", extra={"error": failure.message})
            return _RELIST
        kind, named = event.type, wire.decode_named(event.object)
        meta = named.metadata
        if kind in ("ADDED", "MODIFIED") and not is_news(
            Key(meta.namespace, meta.name), meta.resource_version
        ):
            kind = "BOOKMARK"
    except wire.UNREADABLE as error:
        _log.warning("cannot decode an event of the jobs; relisting", extra={"error": str(error)})
        return _RELIST
    return msgspec.json.encode({"type": kind, "object": named}) + b"\n"
