"""Keeps the pod cache equal to the cluster: list in pages, then watch, and list anew whenever in doubt.

Doubt is a 410, an error event, silence (the API server sends a bookmark a minute), or a lease just won. A
new list replaces the cache, so that a deletion missed is a deletion noticed.
"""

import asyncio
import logging
from random import Random

from dtj_operator import metrics, names
from dtj_operator.kube import views
from dtj_operator.kube.api import LIST_TIMEOUT_S, Api
from dtj_operator.kube.cache import PodCache
from dtj_operator.kube.errors import ApiError, Expired
from dtj_operator.kube.views import PodView
from dtj_operator.names import Key

PAGE = "500"
WATCH_S = 290  # the server ends a watch after this; the next one goes on where it was
SILENCE_S = 75.0
LONGEST_PAUSE_S = 30.0

_log = logging.getLogger(__name__)


class Reflector:
    """Runs for ever; `synced`: the cache has been filled; `last_news`: when the server last spoke."""

    def __init__(
        self,
        api: Api,
        cache: PodCache,
        namespace: str | None,
        random: Random,
        *,
        silence_s: float = SILENCE_S,
    ) -> None:
        self._api, self._cache, self._random = api, cache, random
        self._path, self._silence_s = names.pods_path(namespace), silence_s
        self._lists = asyncio.Lock()
        self.synced = asyncio.Event()
        self.last_news = 0.0

    async def run(self) -> None:
        pause = 0.5
        while True:
            try:
                version = await self.relist()
                pause = 0.5
                await self._follow(version)
            except (ApiError, ValueError) as error:
                _log.warning("pod watch failed, listing anew", extra={"error": str(error), "in_s": pause})
                await asyncio.sleep(pause * self._random.uniform(0.8, 1.2))
                pause = min(LONGEST_PAUSE_S, pause * 2)

    async def relist(self) -> str:
        """Fill the cache anew from a consistent list; return the version to watch from."""
        async with self._lists:
            pods, version = await self._list(names.JOB_NAME, self._path)
            self._cache.replace(pods, version)
        self._heard()
        self.synced.set()
        metrics.RELISTS.inc()
        return version

    async def refresh(self, key: Key) -> None:
        """Bring one job's pods up to date, before something is concluded from a pod that is not there."""
        pods, version = await self._list(f"{names.JOB_NAME}={key.name}", names.pods_path(key.namespace))
        self._cache.replace(pods, version, key)

    async def _list(self, selector: str, path: str) -> tuple[list[PodView], str]:
        pods: list[PodView] = []
        query = [("labelSelector", selector), ("limit", PAGE)]
        token = ""
        while True:
            more = [("continue", token)] if token else []
            page = views.decode_list(await self._api.get(path, [*query, *more], timeout_s=LIST_TIMEOUT_S))
            pods += [views.view(item) for item in page.items]
            token = page.metadata.continue_
            if not token:
                return pods, page.metadata.resource_version

    async def _follow(self, version: str) -> None:
        """Watch from `version` until the history is gone."""
        while True:
            query = [
                ("watch", "true"),
                ("labelSelector", names.JOB_NAME),
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
        event = views.decode_event(line)
        if event.type == "ERROR":
            failure = views.decode_failure(event.object)
            raise Expired(f"WATCH {self._path}", failure.code, "watch ended", failure.message)
        pod = views.decode_pod(event.object)
        if event.type == "DELETED":
            self._cache.forget(pod)
        elif event.type != "BOOKMARK":
            self._cache.observe(pod)
        return pod.version

    def _heard(self) -> None:
        self.last_news = asyncio.get_running_loop().time()
        metrics.PODS.set(len(self._cache))
