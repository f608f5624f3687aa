"""A key becomes a snapshot: the job read from the API, all else from caches, progress from the last poll.

The job is always read, never taken from an event: its status is the operator's memory. Children of which the
caches cannot be sure are looked for before anything is concluded. Before this stands the worker, after it the
planner.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from dtj_operator import names, spec
from dtj_operator.kube.api import Api, Json, decode
from dtj_operator.kube.cache import PodCache
from dtj_operator.kube.children import ChildCache, ChildView
from dtj_operator.kube.errors import NotFound
from dtj_operator.kube.node_leases import NodeLeases
from dtj_operator.kube.nodes import NodeView
from dtj_operator.kube.views import PodView
from dtj_operator.lookup import Lookup
from dtj_operator.names import Key
from dtj_operator.plan.children.netpolicy import network_policy
from dtj_operator.plan.children.service import service
from dtj_operator.plan.snapshot import Child, Gone, Memory, Snapshot
from dtj_operator.progress import Poller

MEND_PAUSE_S = 60.0  # between two times that an edited child is made anew


@dataclass(frozen=True, kw_only=True)
class Caches:
    """All that is known of the cluster without asking.

    nodes   None from the call: they may not be read, or are in doubt
    """

    pods: PodCache
    services: ChildCache
    policies: ChildCache
    nodes: Callable[[], Mapping[str, NodeView] | None] = lambda: None


class AbsentNodes:
    """Since when nodes are gone that this process has seen; of others the cluster's own collector knows."""

    def __init__(self) -> None:
        self._seen: set[str] = set()
        self._since: dict[str, float] = {}

    def since(
        self, nodes: Mapping[str, NodeView] | None, pods: Iterable[PodView], now: float
    ) -> Mapping[str, float]:
        """Return the moments for the nodes of these pods."""
        if nodes is None:
            return self._since
        for name in {pod.node for pod in pods if pod.node}:
            if name in nodes:
                self._seen.add(name)
                self._since.pop(name, None)
            elif name in self._seen:
                self._since.setdefault(name, now)
        return self._since


class Gatherer:
    """Reads; never writes."""

    def __init__(
        self,
        api: Api,
        caches: Caches,
        refresh: Callable[[Key], Awaitable[None]],
        poller: Poller,
        leases: NodeLeases,
        *,
        operator_namespace: str,
        wall: Callable[[], float],
    ) -> None:
        self._api, self._caches = api, caches
        self._lookup = Lookup(api, caches.pods, caches.services, caches.policies, refresh)
        self._poller, self._operator_namespace, self._wall = poller, operator_namespace, wall
        self._leases, self._absent = leases, AbsentNodes()

    async def gather(self, key: Key) -> tuple[Snapshot, str] | Gone | None:
        """Return the snapshot and the job's resourceVersion; Gone: there is no job; None: hands off."""
        try:
            raw = decode(await self._api.get(names.job_path(key)))
        except NotFound:
            return self._gone(key)
        meta = raw["metadata"]
        orphaning = "deletionTimestamp" in meta and "orphan" in (meta.get("finalizers") or ())
        if orphaning or not spec.managed_by_us(raw):
            return None
        snapshot = self._complete(key, raw)
        if await self._lookup.make_sure(key, snapshot):
            snapshot = self._complete(key, raw)
        if doubted := snapshot.nodes_to_check:
            snapshot = replace(snapshot, leases=await self._leases.look(doubted))
        return snapshot, str(meta["resourceVersion"])

    def _complete(self, key: Key, raw: Json) -> Snapshot:
        job, memory, now = spec.parse(raw), Memory(raw.get("status") or {}), self._wall()
        policy = network_policy(job, self._operator_namespace)
        pods, nodes = self._caches.pods.pods(key), self._caches.nodes()
        mended_s = min(cache.since_mended(key) for cache in (self._caches.services, self._caches.policies))
        snapshot = Snapshot(
            job=job,
            memory=memory,
            pods=pods,
            service=_state(self._caches.services, key, job.uid, service(job)),
            network_policy=_state(self._caches.policies, key, job.uid, policy),
            repair_at=now + max(0.0, MEND_PAUSE_S - mended_s),
            nodes=nodes,
            gone_since=self._absent.since(nodes, pods, now),
            progress=self._poller.last(key, job.uid, memory.attempt),
            coordinator_silent=self._poller.silent(key, job.uid, memory.attempt),
            operator_namespace=self._operator_namespace,
            now=now,
        )
        last_nodes = {
            index: self._caches.pods.last_node(key, names.pod_name(key.name, index))
            for index in snapshot.vanished
        }
        return replace(snapshot, last_nodes=last_nodes) if last_nodes else snapshot

    def _gone(self, key: Key) -> Gone:
        self._poller.forget(key)
        self._lookup.gone(key)
        for cache in (self._caches.services, self._caches.policies):
            cache.settle(key)
        pods, nodes, now = self._caches.pods.pods(key), self._caches.nodes(), self._wall()
        return Gone(
            namespace=key.namespace,
            name=key.name,
            pods=pods,
            nodes=nodes,
            gone_since=self._absent.since(nodes, pods, now),
            now=now,
            service_uid=_left_behind(self._caches.services.get(key), key),
            network_policy_uid=_left_behind(self._caches.policies.get(key), key),
        )


def _state(cache: ChildCache, key: Key, uid: str, wanted: Json) -> Child:
    """What a job of this name left behind counts as absent, as what is going does: ours takes its place."""
    found = cache.get(key)
    if found is None:
        return Child.ABSENT
    if found.owner != key.name:
        return Child.FOREIGN
    if found.owner_uid != uid or found.deleting:
        return Child.ABSENT
    return Child.PRESENT if as_made(cache, found, wanted) else Child.EDITED


def as_made(cache: ChildCache, found: ChildView, wanted: Json) -> bool:
    """Whether it is what we make; one without our label would soon be out of our sight."""
    return found.label == found.owner and found.fingerprint == cache.kind.fingerprint(wanted["spec"])


def _left_behind(found: ChildView | None, key: Key) -> str | None:
    """The uid of an object whose controller is a job of this name, which is gone."""
    return found.uid if found is not None and found.owner == key.name and not found.deleting else None
