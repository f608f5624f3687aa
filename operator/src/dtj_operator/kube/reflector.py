"""Keeps a cache equal to the cluster: list in pages, then watch; list again after missed events.

The watch may have missed events after a 410, an error event or silence (the API server sends a bookmark every
minute), and when this process has just become the leader. A new list replaces the cache, so missed deletions
are noticed.
"""

import asyncio
import logging
from collections.abc import Callable
from random import Random
from typing import Generic, TypeVar

from dtj_operator import metrics
from dtj_operator.kube import wire
from dtj_operator.kube.api import JSON_BODY, LIST_TIMEOUT_S, Api
from dtj_operator.kube.cache import Cache
from dtj_operator.kube.errors import ApiError, Expired, Refused
from dtj_operator.kube.wire import Page
from dtj_operator.model.views import ObjectView

PAGE = "500"
WATCH_S = 290  # the server ends a watch after this; the next watch continues at the same version
SILENCE_S = 75.0
LONGEST_RELIST_PAUSE_S = 10.0  # few requests anyway; a longer pause would delay us when the server is back
LONGEST_ASKED_PAUSE_S = 60.0  # that the API server asks for with Retry-After
LIST_FORBIDDEN_PAUSE_S = 30.0  # how often to retry a list that a 403 refused and that is not required

T = TypeVar("T")
V = TypeVar("V", bound=ObjectView)

_log = logging.getLogger(__name__)


class Reflector(Generic[V]):
    """Lists and watches one kind of objects, in one namespace or in all, forever.

    synced        the cache has been filled once
    tried         the same, or the right to read has been missing
    forbidden     the last list was refused, and the operator can work without it
    current       the cache is up to date: a watch is open or is being opened
    problem       why the last list or watch failed; empty once a list has been read again
    last_data_at  when the server last sent data, by the loop's clock
    """

    def __init__(self, api: Api, cache: Cache[V], namespace: str | None, random: Random) -> None:
        self._api, self._source, self._cache, self._random = api, cache.source, cache, random
        self.namespace, self._path = namespace, self._source.path(namespace)
        self.what, self.required = self._source.what, self._source.required
        self._lists = asyncio.Lock()
        self.forbidden = False
        self.synced, self.tried = asyncio.Event(), asyncio.Event()
        self.current = False
        self.problem = ""
        self.last_data_at = 0.0

    async def run(self) -> None:
        pause = 0.5
        while True:
            try:
                version = await self.relist()
                pause = 0.5
                await self._follow(version)
            except Exception as error:  # noqa: BLE001 - the caches must come back, whatever a watch sends
                self.current, self.problem = False, str(error)
                wait_s = self._wait_after(error, pause)
                await asyncio.sleep(wait_s * self._random.uniform(0.8, 1.2))
                pause = min(LONGEST_RELIST_PAUSE_S, pause * 2)

    async def relist(self) -> str:
        """Refill the cache from a consistent list; return the version to watch from."""
        async with self._lists:
            source = self._source
            found, version = await read_list(self._api, self._path, source.decode_list, source.selector)
            self._cache.replace(found, version, namespace=self.namespace)
        self._note_data()
        if not self.current:
            self._cache.on_reconnected()
        self.current, self.problem, self.forbidden = True, "", False
        self.synced.set()
        self.tried.set()
        metrics.RELISTS.labels(self.what).inc()
        return version

    async def _follow(self, version: str) -> None:
        """Watch from `version` until the API server no longer has its history."""
        while True:
            query = [
                ("watch", "true"),
                *_selecting(self._source.selector),
                ("resourceVersion", version),
                ("allowWatchBookmarks", "true"),
                ("timeoutSeconds", str(WATCH_S)),
            ]
            async with self._api.watch(self._path, query, SILENCE_S) as lines:
                async for line in lines:
                    self._note_data()
                    version = self._apply(line) or version

    def _apply(self, line: bytes) -> str:
        """Apply one event to the cache; return its version."""
        event = wire.decode_event(line)
        if event.type == "ERROR":
            failure = wire.decode_failure(event.object)
            raise Expired(f"WATCH {self._path}", failure.code, "watch ended", failure.message)
        if event.type == "BOOKMARK":
            return wire.decode_named(event.object).metadata.resource_version
        try:
            view = self._source.decode(event.object)
        except wire.UNREADABLE as error:
            wire.log_unreadable(event.object, error)
            return ""
        if event.type == "DELETED":
            self._cache.remove_from_watch(view)
        else:
            self._cache.observe(view)
        return view.version

    def _note_data(self) -> None:
        self.last_data_at = asyncio.get_running_loop().time()

    def _wait_after(self, error: Exception, pause: float) -> float:
        """Log the failure (a missing optional right only once); return the seconds until the next try."""
        pause = max(pause, min(LONGEST_ASKED_PAUSE_S, getattr(error, "after_s", 0.0)))
        fields = {"what": self.what, "error": str(error)}
        if self.required or not isinstance(error, Refused):
            self.forbidden = False
            unexpected = None if isinstance(error, ApiError) else error
            _log.warning(
                "watch failed; relisting", extra={**fields, "retry_in_s": pause}, exc_info=unexpected
            )
            return pause
        self.tried.set()
        if not self.forbidden:
            self.forbidden = True
            _log.warning("no permission to read these objects; continuing without them", extra=fields)
        return LIST_FORBIDDEN_PAUSE_S


async def read_list(
    api: Api, path: str, decode: Callable[[bytes], Page[T]], selector: str = "", *, accept: str = JSON_BODY
) -> tuple[list[T], str]:
    """Read a collection in pages; return it and its version. All pages show the same moment."""
    found: list[T] = []
    query = [("limit", PAGE), *_selecting(selector)]
    token = ""
    while True:
        more = [("continue", token)] if token else []
        page = decode(await api.get(path, [*query, *more], timeout_s=LIST_TIMEOUT_S, accept=accept))
        found += page.items
        token = page.metadata.continue_
        if not token:
            return found, page.metadata.resource_version


def _selecting(selector: str) -> list[tuple[str, str]]:
    return [("labelSelector", selector)] if selector else []
