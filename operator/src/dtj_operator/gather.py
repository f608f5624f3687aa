"""Makes a snapshot for a key: reads the job from the API, the rest from caches, progress from the last poll.

The job is never taken from an event, because its status is the operator's memory: see `kube/jobs.py`.
Children whose absence the caches are not sure of are read before anything is concluded. A worker reconciles
the key; the planner gets the snapshot.
"""

from collections.abc import Callable
from dataclasses import replace

from dtj_operator.kube.api import Api
from dtj_operator.kube.caches import Caches
from dtj_operator.kube.children import ChildCache
from dtj_operator.kube.errors import NotFound
from dtj_operator.kube.jobs import Jobs
from dtj_operator.kube.node_leases import NodeLeases
from dtj_operator.model import names, spec
from dtj_operator.model.children import Child
from dtj_operator.model.json import Json
from dtj_operator.model.memory import Memory
from dtj_operator.model.names import Key
from dtj_operator.model.spec import Recovery
from dtj_operator.plan.children.networking import networking
from dtj_operator.plan.snapshot import UNKNOWN, Gone, Snapshot
from dtj_operator.progress import Poller
from dtj_operator.queueing import QueueReader
from dtj_operator.verify import Verifier

REVERT_PAUSE_S = 60.0  # between two reverts of edits of a child


class Gatherer:
    """Reads from the cluster; never writes."""

    def __init__(
        self,
        api: Api,
        jobs: Jobs,
        caches: Caches,
        poller: Poller,
        *,
        readers: tuple[Json, ...],
        wall: Callable[[], float],
        monotonic: Callable[[], float],
    ) -> None:
        self._jobs, self._caches = jobs, caches
        self._verifier = Verifier(api, caches)
        self._queues = QueueReader(api, caches)
        self._poller, self._readers = poller, readers
        self._leases, self._wall, self._monotonic = NodeLeases(api.get), wall, monotonic
        self._recovery: dict[Key, Recovery] = {}  # of jobs, for what is left of them after their deletion

    async def gather(self, key: Key, raw: Json | None = None) -> tuple[Snapshot, Json] | Gone | None:
        """Return the snapshot and the job; Gone: no job; None: not for us to manage.

        raw  the job, if the caller has read or written it a moment ago
        """
        if raw is None:
            try:
                raw = await self._jobs.read(key)
            except NotFound:
                return self._gone(key)
        meta = raw["metadata"]
        orphaning = "deletionTimestamp" in meta and "orphan" in (meta.get("finalizers") or ())
        if orphaning or not spec.managed_by_us(raw):
            return None
        snapshot = self._snapshot(key, raw)
        if snapshot.job.remote:
            return await self._queues.complete(key, snapshot), raw
        if await self._verifier.verify(key, snapshot):
            snapshot = self._snapshot(key, raw)
        if unchecked := snapshot.nodes_to_check:
            snapshot = replace(snapshot, leases=await self._leases.read(unchecked))
        return await self._queues.complete(key, snapshot), raw

    def _snapshot(self, key: Key, raw: Json) -> Snapshot:
        job, now, monotonic = spec.parse(raw), self._wall(), self._monotonic()
        memory = Memory.of(raw.get("status") or {}, job.uid, is_remote=job.remote)
        self._recovery[key] = job.recovery
        gangs_off = self._caches.gangs.off(key.namespace)
        reverted_at = max(cache.reverted_at.get(key, float("-inf")) for cache in self._caches.children)
        snapshot = Snapshot(
            job=job,
            memory=memory,
            pods=self._caches.pods.of(key),
            children={
                kind: _state(self._caches.of(kind), key, job.uid, body)
                for kind, body in networking(job, self._readers).items()
            },
            gang_api="" if gangs_off else self._caches.gangs.api_version,
            gangs_off=gangs_off,
            pod_groups=self._caches.pod_groups.of(key),
            revert_at=now + max(0.0, reverted_at + REVERT_PAUSE_S - monotonic),
            nodes=self._caches.nodes(),
            gone_since=self._caches.gone_nodes(),
            answer=self._poller.last(key, job.uid, memory.attempt),
            coordinator_silence=self._poller.silence(key, job.uid, memory.attempt),
            readers=self._readers,
            now=now,
            monotonic=monotonic,
        )
        last_nodes = {
            index: self._caches.pods.last_node(key, names.pod_name(key.name, index))
            for index in snapshot.vanished
        }
        return replace(snapshot, last_nodes=last_nodes) if last_nodes else snapshot

    def _gone(self, key: Key) -> Gone:
        self._poller.forget(key)
        self._verifier.forget(key)
        for cache in self._caches.children:
            cache.reverted_at.pop(key, None)
        pods = self._caches.pods.of(key)
        recovery = self._recovery.get(key, UNKNOWN) if pods else self._recovery.pop(key, UNKNOWN)
        return Gone(
            recovery=recovery,
            pods=pods,
            nodes=self._caches.nodes(),
            gone_since=self._caches.gone_nodes(),
            now=self._wall(),
            monotonic=self._monotonic(),
            children={
                cache.kind.kind: found.uid
                for cache in self._caches.children
                if (found := cache.get(key)) is not None and found.owner == key.name and not found.deleting
            },
        )


def _state(cache: ChildCache, key: Key, uid: str, wanted: Json) -> Child:
    """An object that an earlier job left, or that is being deleted, counts as absent: ours replaces it."""
    found = cache.get(key)
    if found is None:
        return Child.ABSENT
    if found.owner != key.name:
        return Child.FOREIGN
    if found.owner_uid != uid or found.deleting:
        return Child.ABSENT
    return Child.EDITED if cache.kind.is_edited(found, wanted) else Child.PRESENT
