"""Asks the API by name for children that the caches cannot be trusted about.

Names of children are fixed, so that what no watch by label shows can still be found. Costs nothing as long as
nobody takes labels off: the caches know of each absence whether it is certain.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable

from dtj_operator import names
from dtj_operator.kube.api import Api
from dtj_operator.kube.cache import PodCache
from dtj_operator.kube.children import ChildCache
from dtj_operator.kube.errors import NotFound
from dtj_operator.kube.views import decode_pod
from dtj_operator.names import Key
from dtj_operator.plan.snapshot import SUSPENDED, Snapshot

FEW = 20  # pods that are asked for one by one; of more all of the namespace are listed
RECENT_S = 600.0  # what ended before that was cleaned up by whoever led then


class Lookup:
    """Brings what it finds into the caches; remembers which jobs this process has looked at."""

    def __init__(
        self,
        api: Api,
        pods: PodCache,
        services: ChildCache,
        policies: ChildCache,
        refresh: Callable[[Key], Awaitable[None]],
    ) -> None:
        self._api, self._pods, self._refresh = api, pods, refresh
        self._services, self._policies = services, policies
        self._known: dict[Key, str] = {}  # uid of the job that has been looked at

    def gone(self, key: Key) -> None:
        """The job is gone; what it left out of our sight the garbage collector takes."""
        self._known.pop(key, None)
        for cache in (self._pods, self._services, self._policies):
            cache.doubts.drop(key)

    async def make_sure(self, key: Key, s: Snapshot) -> bool:
        """Ask for whatever is in doubt; return whether there was anything."""
        first = self._known.get(key) != s.job.uid and bool(s.memory.raw)
        may_hide = first and _may_hide_children(s)
        asked = [
            self._look_for_child(cache, key)
            for cache in (self._services, *([self._policies] if s.job.isolated else []))
            if cache.doubts.of(key) or (may_hide and cache.get(key) is None)
        ]
        pods = self._doubtful_pods(key, s, first)
        if len(pods) > FEW:
            asked.append(self._list(key, pods))
        else:
            asked += [self._look_for_pod(key, name) for name in pods]
        await asyncio.gather(*asked)
        self._known[key] = s.job.uid
        return bool(asked)

    def _doubtful_pods(self, key: Key, s: Snapshot, first: bool) -> set[str]:
        """A pod that lost its label is out of the watch's sight: neither it nor its end is ever told."""
        found = {pod.name for pod in s.pods if pod.mislabelled} | set(self._pods.doubts.of(key))
        vanished = () if s.job.deleting else s.vanished
        hidden = s.missing if first and _may_hide_pods(s) else ()
        shown = {pod.name for pod in s.pods}
        return found | ({names.pod_name(key.name, index) for index in (*vanished, *hidden)} - shown)

    async def _look_for_pod(self, key: Key, name: str) -> None:
        path = f"{names.pods_path(key.namespace)}/{name}"
        with self._pods.doubts.settling(key, name):
            try:
                found = decode_pod(await self._api.get(path))
            except NotFound:
                self._pods.missing(key, name)
                return
            if found.key == key:
                self._pods.observe(found, quiet=True, found=True)
            else:  # somebody took it away from the job
                self._pods.missing(key, name)

    async def _list(self, key: Key, pods: Iterable[str]) -> None:
        await self._refresh(key)
        for name in pods:
            self._pods.doubts.settle(key, name)

    async def _look_for_child(self, cache: ChildCache, key: Key) -> None:
        path = f"{cache.kind.path(key.namespace)}/{key.name}"
        with cache.doubts.settling(key, key.name):
            try:
                found = cache.kind.decode(await self._api.get(path))
            except NotFound:
                cache.missing(key, key.name)
                return
            if found.owner == key.name:  # else no watch would tell when it is gone
                cache.observe(found, quiet=True, found=True)


def _may_hide_children(s: Snapshot) -> bool:
    """Whether there may be a Service or NetworkPolicy that this process has never seen."""
    if s.memory.finished:
        return _ended_recently(s)
    return s.memory.phase != SUSPENDED or s.memory.attempt > 0  # else the job has not begun yet


def _may_hide_pods(s: Snapshot) -> bool:
    """Whether a pod that this process has never seen could do harm.

    One of the present attempt is in nobody's way, for making another of its name finds it. One of the
    attempt before keeps the others waiting.
    """
    return _ended_recently(s) if s.memory.finished else s.memory.attempt > 0


def _ended_recently(s: Snapshot) -> bool:
    ended = s.memory.completed_at
    return ended is not None and abs(s.now - ended) < RECENT_S
