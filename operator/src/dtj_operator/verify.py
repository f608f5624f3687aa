"""Reads children by name from the API server if the caches do not know for sure whether they exist.

The names of children are fixed, so a child can be found even if no watch with a label selector shows it. This
costs nothing unless labels are removed: the caches know which absences are certain.
"""

import asyncio
from collections.abc import Iterable
from typing import Any

from dtj_operator.kube.api import Api
from dtj_operator.kube.cache import Cache
from dtj_operator.kube.caches import Caches
from dtj_operator.kube.errors import NotFound
from dtj_operator.kube.reflector import read_list
from dtj_operator.model import names
from dtj_operator.model.memory import SUSPENDED
from dtj_operator.model.names import Key
from dtj_operator.plan.snapshot import Snapshot

FEW = 20  # up to this many pods are read one by one; for more, all pods of the namespace are listed
RECENT_S = 600.0  # the leader of that time has cleaned up after jobs that ended earlier


class Verifier:
    """Puts what it finds into the caches; remembers which jobs this process has verified."""

    def __init__(self, api: Api, caches: Caches) -> None:
        self._api, self._caches, self._pods = api, caches, caches.pods
        self._verified: dict[Key, str] = {}  # uid of the job that was verified

    def forget(self, key: Key) -> None:
        """Forget a job that is gone; the garbage collector deletes its children that no watch shows."""
        self._verified.pop(key, None)
        for cache in (self._pods, *self._caches.children):
            cache.unverified.discard_all(key)

    async def verify(self, key: Key, s: Snapshot) -> bool:
        """Read every child of the job whose absence is uncertain; return whether there was any."""
        first = self._verified.get(key) != s.job.uid and bool(s.memory.raw)
        may_hide = first and _may_hide_children(s)
        reads = [
            self._read(key, key.name, cache)
            for cache in map(self._caches.of, s.children)
            if cache.unverified.of(key) or (may_hide and cache.get(key) is None)
        ]
        pods = self._uncertain_pods(key, s, first)
        if len(pods) > FEW:
            reads.append(self._list_pods(key, pods))
        else:
            reads += [self._read(key, name, self._pods) for name in pods]
        await asyncio.gather(*reads)
        self._verified[key] = s.job.uid
        return bool(reads)

    def _uncertain_pods(self, key: Key, s: Snapshot, first: bool) -> set[str]:
        """Names of pods to read. The watch shows neither a pod without its label nor the end of that pod."""
        uncertain = {pod.name for pod in s.pods if pod.mislabelled} | set(self._pods.unverified.of(key))
        vanished = () if s.job.deleting else s.vanished
        hidden = s.missing if first and _may_hide_pods(s) else ()
        shown = {pod.name for pod in s.pods}
        return uncertain | ({names.pod_name(key.name, index) for index in (*vanished, *hidden)} - shown)

    async def _read(self, key: Key, name: str, cache: Cache[Any]) -> None:
        source = cache.source
        with cache.unverified.verifying(key, name):
            try:
                found = source.decode(await self._api.get(f"{source.path(key.namespace)}/{name}"))
            except NotFound:
                found = None
            if found is not None and found.job == key.name:
                cache.observe(found, quiet=True, found=True)
            else:  # it is gone, or its owner was changed: it no longer belongs to the job
                cache.remove_name(key, name)

    async def _list_pods(self, key: Key, pods: Iterable[str]) -> None:
        source = self._pods.source
        found, version = await read_list(self._api, source.path(key.namespace), source.decode_list)
        self._pods.replace([pod for pod in found if pod.key == key], version, key)
        for name in pods:
            self._pods.unverified.discard(key, name)


def _may_hide_children(s: Snapshot) -> bool:
    """Whether there may be a Service or NetworkPolicy that this process has never seen."""
    if s.memory.finished:
        return _ended_recently(s)
    return s.memory.phase != SUSPENDED or s.memory.attempt > 0  # otherwise the job has not started yet


def _may_hide_pods(s: Snapshot) -> bool:
    """Whether a pod that this process has never seen could do harm.

    A hidden pod of the current attempt is found when a pod of the same name is created. A hidden pod of an
    earlier attempt makes the other pods wait.
    """
    return _ended_recently(s) if s.memory.finished else s.memory.attempt > 0


def _ended_recently(s: Snapshot) -> bool:
    ended = s.memory.completed_at
    return ended is not None and abs(s.now - ended) < RECENT_S
