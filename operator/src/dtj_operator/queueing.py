"""Completes a snapshot with what the cluster says about the queue of the job.

The Workloads come from a cache. What a job seldom needs, such as ResourceFlavors before its pods are created,
is read when it is needed.
"""

from dataclasses import replace

from dtj_operator.kube import paths
from dtj_operator.kube.api import Api, decode
from dtj_operator.kube.caches import Caches
from dtj_operator.kube.errors import Answered, NotFound
from dtj_operator.kube.workloads import decode_flavor, decode_workload
from dtj_operator.model import names
from dtj_operator.model.json import Json
from dtj_operator.model.names import Key
from dtj_operator.model.views import WorkloadView
from dtj_operator.plan import queue
from dtj_operator.plan.children.workload import workload_name
from dtj_operator.plan.snapshot import QueueFacts, Snapshot

_CLASSES = {
    "WorkloadPriorityClass": f"/apis/{names.KUEUE_API}/workloadpriorityclasses",
    "PriorityClass": "/apis/scheduling.k8s.io/v1/priorityclasses",
}


class QueueReader:
    """Reads from the cluster; never writes."""

    def __init__(self, api: Api, caches: Caches) -> None:
        self._api, self._caches = api, caches

    async def complete(self, key: Key, s: Snapshot) -> Snapshot:
        """Return the snapshot with the Workloads of the job, and with what the next action needs."""
        found, problem = self._caches.workloads.of(key), self._caches.kueue.problem
        if not found and s.job.queue is None:
            return s
        asked = None if s.job.deleting or problem else s.job.queue
        if asked is not None and queue.current(s.job, found) is None:
            found += await self._unseen(key.namespace, workload_name(s.job, asked))
        s = queue.with_facts(s, QueueFacts(problem=problem, workloads=found))
        if asked is None:
            return s
        reference = queue.needed_class(s)
        if reference is not None:
            s = await self._with_priority(s, reference)
        return await self._with_flavors(s)

    async def _unseen(self, namespace: str, name: str) -> tuple[WorkloadView, ...]:
        """Read a Workload by its name: it may lack our label, or have been created a moment ago."""
        try:
            return (decode_workload(await self._api.get(f"{paths.workloads(namespace)}/{name}")),)
        except NotFound:
            return ()

    async def _with_priority(self, s: Snapshot, reference: Json) -> Snapshot:
        try:
            found = decode(await self._api.get(f"{_CLASSES[reference['kind']]}/{reference['name']}"))
        except Answered as error:
            return _without(s, f"{reference['kind']} {reference['name']}, which the job names", error)
        return replace(s, queue=replace(s.queue, priority=int(found.get("value") or 0)))

    async def _with_flavors(self, s: Snapshot) -> Snapshot:
        found = {}
        for name in queue.needed_flavors(s):
            try:
                found[name] = decode_flavor(await self._api.get(f"{paths.flavors}/{name}"))
            except Answered as error:
                return _without(s, f"ResourceFlavor {name}, which the job was admitted to", error)
        return replace(s, queue=replace(s.queue, flavors=found)) if found else s


def _without(s: Snapshot, what: str, error: Answered) -> Snapshot:
    return replace(s, queue=replace(s.queue, absent=f"{what}, cannot be read: {error.message}"))
