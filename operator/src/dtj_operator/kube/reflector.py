"""Keeps a cache equal to the cluster: list in pages, then watch, and list anew whenever in doubt.

Doubt is a 410, an error event, silence (the API server sends a bookmark a minute), or a lease just won. A
new list replaces the cache, so that a deletion missed is a deletion noticed.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any, Generic, TypeVar

import msgspec

from dtj_operator import metrics, names
from dtj_operator.kube import children, nodes, views, wire
from dtj_operator.kube.api import LIST_TIMEOUT_S, Api
from dtj_operator.kube.cache import Cache, View
from dtj_operator.kube.children import ChildKind, ChildView
from dtj_operator.kube.errors import ApiError, Expired, Refused
from dtj_operator.kube.nodes import NodeView
from dtj_operator.kube.views import PodView
from dtj_operator.kube.wire import Page
from dtj_operator.names import Key

PAGE = "500"
WATCH_S = 290  # the server ends a watch after this; the next one goes on where it was
SILENCE_S = 75.0
LONGEST_PAUSE_S = 10.0  # a handful of requests: what it costs is to be late when the server is back
FORBIDDEN_PAUSE_S = 300.0  # how often to see whether a right that one can do without has been given

T = TypeVar("T")
V = TypeVar("V", bound=View)

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Source(Generic[V]):
    """What is read, and how.

    path          of the collection, in one namespace or in all
    selector      by label; empty: everything
    indispensable the operator cannot work without it; else the right to read it may be lacking
    """

    what: str
    path: Callable[[str | None], str]
    decode: Callable[[msgspec.Raw], V]
    decode_list: Callable[[bytes], Page[V]]
    selector: str = names.JOB_NAME
    indispensable: bool = True


PODS: Source[PodView] = Source(
    what="pods", path=names.pods_path, decode=views.decode_pod, decode_list=views.decode_pods
)
NODES: Source[NodeView] = Source(
    what="nodes",
    path=lambda _: names.NODES_PATH,
    decode=nodes.decode_node,
    decode_list=nodes.decode_nodes,
    selector="",
    indispensable=False,
)


def _children(kind: ChildKind[Any], what: str) -> Source[ChildView]:
    return Source(what=what, path=kind.path, decode=kind.decode, decode_list=kind.decode_list)


SERVICES = _children(children.SERVICE, "services")
NETWORK_POLICIES = _children(children.NETWORK_POLICY, "networkpolicies")


class Reflector(Generic[V]):
    """Runs for ever.

    synced     the cache has been filled once
    current    it is being kept so: there is a watch, or one is just being opened
    last_news  when the server last spoke, by the loop's clock
    """

    def __init__(
        self,
        api: Api,
        source: Source[V],
        cache: Cache[V],
        namespace: str | None,
        random: Random,
        *,
        silence_s: float = SILENCE_S,
        forbidden_s: float = FORBIDDEN_PAUSE_S,
    ) -> None:
        self._api, self._source, self._cache, self._random = api, source, cache, random
        self._path, self._silence_s = source.path(namespace), silence_s
        self._forbidden_s = forbidden_s
        self._lists = asyncio.Lock()
        self._forbidden = False
        self.synced = asyncio.Event()
        self.current = False
        self.last_news = 0.0

    @property
    def what(self) -> str:
        return self._source.what

    def keys(self) -> list[Key]:
        return self._cache.keys()

    async def run(self) -> None:
        pause = 0.5
        while True:
            try:
                version = await self.relist()
                pause = 0.5
                await self._follow(version)
            except (ApiError, ValueError) as error:
                self.current = False
                await self._pause(self._wait_after(error, pause))
                pause = min(LONGEST_PAUSE_S, pause * 2)

    async def relist(self) -> str:
        """Fill the cache anew from a consistent list; return the version to watch from."""
        async with self._lists:
            found, version = await self._list(self._source.selector, self._path)
            self._cache.replace(found, version)
        self._heard()
        if not self.current:
            self._cache.recall()
        self.current, self._forbidden = True, False
        self.synced.set()
        metrics.RELISTS.labels(self.what).inc()
        return version

    async def refresh(self, key: Key) -> None:
        """Bring one job's objects up to date, those without our label too."""
        found, version = await self._list("", self._source.path(key.namespace))
        self._cache.replace([view for view in found if view.key == key], version, key)

    async def _list(self, selector: str, path: str) -> tuple[list[V], str]:
        return await read_list(self._api, path, self._source.decode_list, selector)

    async def _follow(self, version: str) -> None:
        """Watch from `version` until the history is gone."""
        while True:
            query = [
                ("watch", "true"),
                *_selecting(self._source.selector),
                ("resourceVersion", version),
                ("allowWatchBookmarks", "true"),
                ("timeoutSeconds", str(WATCH_S)),
            ]
            async with self._api.watch(self._path, query, self._silence_s) as lines:
                async for line in lines:
                    self._heard()
                    version = self._apply(line) or version

    def _apply(self, line: bytes) -> str:
        """Take in one event; return the version that it brings us to."""
        event = wire.decode_event(line)
        if event.type == "ERROR":
            failure = wire.decode_failure(event.object)
            raise Expired(f"WATCH {self._path}", failure.code, "watch ended", failure.message)
        if event.type == "BOOKMARK":
            return wire.decode_named(event.object).metadata.resource_version
        view = self._source.decode(event.object)
        if event.type == "DELETED":
            self._cache.leave(view)
        else:
            self._cache.observe(view)
        return view.version

    def _heard(self) -> None:
        self.last_news = asyncio.get_running_loop().time()

    def _wait_after(self, error: Exception, pause: float) -> float:
        """Log the failure, one that is no fault but once; return the seconds until the next try."""
        told = {"what": self.what, "error": str(error)}
        if self._source.indispensable or not isinstance(error, Refused):
            _log.warning("watch failed; relisting", extra={**told, "retry_in_s": pause})
            return pause
        if not self._forbidden:
            self._forbidden = True
            _log.warning("no permission to read these objects; continuing without them", extra=told)
        return self._forbidden_s

    async def _pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds * self._random.uniform(0.8, 1.2))


async def read_list(
    api: Api, path: str, decode: Callable[[bytes], Page[T]], selector: str = ""
) -> tuple[list[T], str]:
    """Read a collection in pages; return it and its version, which is that of one moment."""
    found: list[T] = []
    query = [("limit", PAGE), *_selecting(selector)]
    token = ""
    while True:
        more = [("continue", token)] if token else []
        page = decode(await api.get(path, [*query, *more], timeout_s=LIST_TIMEOUT_S))
        found += page.items
        token = page.metadata.continue_
        if not token:
            return found, page.metadata.resource_version


def _selecting(selector: str) -> list[tuple[str, str]]:
    return [("labelSelector", selector)] if selector else []
