"""A key becomes a snapshot: the job read from the API, pods from the cache, progress from the last poll.

The job is always read, never taken from an event: its status is the operator's memory. A pod that a cache
does not show is looked for in the API before anything is concluded. Before this stands the worker, after it
the planner.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from dtj_operator import names, spec
from dtj_operator.kube.api import Api, Json, decode
from dtj_operator.kube.cache import PodCache
from dtj_operator.kube.errors import NotFound
from dtj_operator.kube.reflector import Reflector
from dtj_operator.names import Key
from dtj_operator.plan.snapshot import RUNNING, Child, Gone, Memory, Snapshot
from dtj_operator.progress import Poller

LOOK_AGAIN_S = 600.0  # how long a Service that was seen is believed to be there


@dataclass(frozen=True)
class _Known:
    """What is known of the two network objects of one job."""

    uid: str
    service: Child = Child.UNKNOWN
    policy: Child = Child.UNKNOWN
    until: float = 0.0


class Children:
    """Remembers which Services and NetworkPolicies exist, so that a look at a job need not ask."""

    def __init__(self) -> None:
        self._known: dict[Key, _Known] = {}

    def of(self, key: Key, uid: str) -> tuple[Child, Child]:
        known = self._known.get(key)
        if known is None or known.uid != uid or time.monotonic() > known.until:
            return Child.UNKNOWN, Child.UNKNOWN
        return known.service, known.policy

    def learn(self, key: Key, uid: str, *, service: Child | None = None, policy: Child | None = None) -> None:
        """Take in what a call showed; somebody else's objects are asked about every time."""
        old_service, old_policy = self.of(key, uid)
        known = _Known(uid, service or old_service, policy or old_policy, time.monotonic() + LOOK_AGAIN_S)
        self._known[key] = known

    def forget(self, key: Key) -> None:
        self._known.pop(key, None)


class Gatherer:
    """Reads; never writes."""

    def __init__(
        self,
        api: Api,
        cache: PodCache,
        reflector: Reflector,
        children: Children,
        poller: Poller,
        *,
        operator_namespace: str,
        wall: Callable[[], float],
    ) -> None:
        self._api, self._cache, self._reflector, self._children = api, cache, reflector, children
        self._poller, self._operator_namespace, self._wall = poller, operator_namespace, wall

    async def gather(self, key: Key) -> tuple[Snapshot, str] | Gone | None:
        """Return the snapshot and the job's resourceVersion; Gone: there is no job; None: hands off."""
        try:
            raw = decode(await self._api.get(names.job_path(key)))
        except NotFound:
            return await self._gone(key)
        meta = raw["metadata"]
        orphaning = "deletionTimestamp" in meta and "orphan" in (meta.get("finalizers") or ())
        if orphaning or not spec.managed_by_us(raw):
            return None
        snapshot = await self._complete(key, raw)
        if snapshot.memory.phase == RUNNING and snapshot.missing and not snapshot.job.deleting:
            await self._reflector.refresh(key)
            snapshot = replace(snapshot, pods=self._cache.pods(key))
        return snapshot, str(meta["resourceVersion"])

    async def _complete(self, key: Key, raw: Json) -> Snapshot:
        job, memory = spec.parse(raw), Memory(raw.get("status") or {})
        service, policy = self._children.of(key, job.uid)
        if memory.phase and service is Child.UNKNOWN:  # a new job has none: trying to make them tells as much
            service, policy = await self._look(key, job)
        return Snapshot(
            job=job,
            memory=memory,
            pods=self._cache.pods(key),
            service=service,
            network_policy=policy,
            progress=self._poller.last(key, job.uid, memory.attempt),
            operator_namespace=self._operator_namespace,
            now=self._wall(),
        )

    async def _look(self, key: Key, job: spec.Job) -> tuple[Child, Child]:
        raw = await asyncio.gather(
            self._read(f"{names.services_path(key.namespace)}/{key.name}"),
            self._read(f"{names.policies_path(key.namespace)}/{key.name}"),
        )
        service, policy = (_whose(found, job) for found in raw)
        if Child.FOREIGN not in (service, policy):
            self._children.learn(key, job.uid, service=service, policy=policy)
        return service, policy

    async def _gone(self, key: Key) -> Gone:
        self._children.forget(key)
        self._poller.forget(key)
        service, policy = await asyncio.gather(
            self._read(f"{names.services_path(key.namespace)}/{key.name}"),
            self._read(f"{names.policies_path(key.namespace)}/{key.name}"),
        )
        return Gone(
            namespace=key.namespace,
            name=key.name,
            pods=self._cache.pods(key),
            service_uid=left_behind(service, key.name),
            network_policy_uid=left_behind(policy, key.name),
        )

    async def _read(self, path: str) -> Json | None:
        try:
            return decode(await self._api.get(path))
        except NotFound:
            return None


def owned_by(raw: Json, uid: str) -> bool:
    """Whether the job of this uid controls the object."""
    return any(
        o.get("controller") and o.get("uid") == uid for o in raw["metadata"].get("ownerReferences") or ()
    )


def _whose(raw: Json | None, job: spec.Job) -> Child:
    """What a job of this name left behind counts as absent: making ours anew takes its place."""
    if raw is None:
        return Child.ABSENT
    if owned_by(raw, job.uid):
        return Child.PRESENT
    return Child.ABSENT if left_behind(raw, job.name) else Child.FOREIGN


def left_behind(raw: Json | None, job: str) -> str | None:
    """The uid of an object whose controller is a job of ours of this name, which is gone."""
    owners = raw["metadata"].get("ownerReferences") or () if raw else ()
    ours = any(o.get("controller") and o.get("kind") == names.KIND and o.get("name") == job for o in owners)
    return str(raw["metadata"]["uid"]) if raw and ours else None
