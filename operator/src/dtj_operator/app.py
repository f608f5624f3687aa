"""The running operator: creates and connects its parts, and owns the tasks that run them.

Only the leader has a queue of keys, and workers which take them. The watches and caches also run in the
followers, so that a follower takes over with warm caches. If a background task ends, the process exits: a
restart is the only recovery that always works.
"""

import asyncio
import logging
import os
import platform
import random
import sys
import time
from collections.abc import Callable, Collection, Coroutine, Sequence
from functools import partial
from itertools import compress
from typing import Any, TypeVar

from aiohttp import web
from kubernetes.aio.client import Configuration

from dtj_operator import VERSION, health, metrics
from dtj_operator.apply import Applier
from dtj_operator.engine.turns import Turns
from dtj_operator.engine.worker import work
from dtj_operator.engine.workqueue import WorkQueue
from dtj_operator.gather import Gatherer
from dtj_operator.job_metrics import JOBS
from dtj_operator.kube import optional, paths, rights, wire
from dtj_operator.kube.api import METADATA_LIST, Api
from dtj_operator.kube.bounded import bounded
from dtj_operator.kube.bucket import Bucket
from dtj_operator.kube.cache import Cache, PodCache
from dtj_operator.kube.caches import Caches
from dtj_operator.kube.children import NETWORK_POLICY, SERVICE, ChildCache
from dtj_operator.kube.discovery import missing_right, serves_jobs
from dtj_operator.kube.errors import Unavailable
from dtj_operator.kube.jobs import Jobs
from dtj_operator.kube.lease import Lease, acquire_all
from dtj_operator.kube.nodes import NodeCache
from dtj_operator.kube.optional import Feature
from dtj_operator.kube.pod_groups import Gangs, pod_groups_of
from dtj_operator.kube.recorder import Recorder
from dtj_operator.kube.reflector import SILENCE_S, Reflector, read_list
from dtj_operator.kube.wire import Source
from dtj_operator.kube.workloads import WORKLOADS, kueue
from dtj_operator.model import names
from dtj_operator.model.names import Key
from dtj_operator.model.views import ObjectView, PodView
from dtj_operator.plan.children.networking import operator_peer
from dtj_operator.progress import HttpAsk, Poller
from dtj_operator.reconcile import Reconciler
from dtj_operator.settings import LEASE, Settings
from dtj_operator.verify import FEW

UNLIMITED = 1e9  # requests a second of the watches and the lease: there are few, and they must not wait
POD_CHANGE_DELAY_S = 0.2  # a starting pod changes several times in a row: one reconcile after them is enough
PATIENCE_S = 2.0  # if many jobs start at once, creating pods is more urgent than reporting on started ones
# After a start, a takeover, a resync or an outage of the job watch every job is queued: new faults must not
# wait behind all of them.
BACKLOG_PATIENCE_S = 60.0
FIRST_JOBS = 100  # of those with a fault, before a new leader has read everything again
PROGRESS_WRITES_PER_S = 5.0  # of all jobs together
LIST_PAUSE_S = 10.0  # after a list of the jobs that failed
LONGEST_OPTIONAL_LIST_S = 30.0  # what is not required keeps a new leader no longer from the jobs
RIGHTS_PAUSE_S = 5.0  # between two looks for rights that are missing
UNSERVED_PAUSE_S = 2.0  # between two looks for our kind if the API server does not serve it

V = TypeVar("V", bound=ObjectView)

_log = logging.getLogger(__name__)


class NotServed(Exception):  # noqa: N818
    """An optional kind is gone or has another version, as after an upgrade: the operator must start again."""


class App:
    """The operator. `start` and `stop` run its tasks, `on_job` takes the events of the job watch."""

    def __init__(self, settings: Settings, config: Configuration) -> None:
        chance = random.Random()
        self._settings, self._chance = settings, chance
        identity, bucket = settings.identity, Bucket(settings.requests_per_second)
        self._api = Api(config, bucket, chance, identity=identity, may_write=self._may_act)
        # For watches and the lease, so that a burst of writes cannot starve them.
        self._steady = Api(config, Bucket(UNLIMITED), chance, identity=identity)
        self._ask = HttpAsk()
        self.queue: WorkQueue[Key] = WorkQueue(
            chance, workers=settings.workers, group_of=lambda key: key.namespace
        )
        self.jobs = Jobs(self._api, self.queue.add, time.monotonic)
        self._leads = self._takes_over = False
        # Why the jobs cannot be read, as far as is known: kopf has not begun yet.
        self._no_jobs = f"caches not filled yet: {names.PLURAL}"
        self._unread: Sequence[str | None] = ()  # namespaces whose jobs may not be read, as far as is known
        self._unlisted: set[str | None] = set()  # those whose last list of jobs failed
        self._lacks = ""  # rights to write that are missing, as far as is known
        nodes = NodeCache(self._node_changed, clock=time.monotonic)
        follow_nodes = Reflector(self._steady, nodes, None, chance)
        self._caches = caches = Caches(
            pods=PodCache(self._child_changed, self.queue.retry_failed_now, clock=time.monotonic),
            services=ChildCache(SERVICE, self._child_changed),
            policies=ChildCache(NETWORK_POLICY, self._child_changed),
            pod_groups=Cache(pod_groups_of(""), self._child_changed),
            gangs=Gangs(time.monotonic),
            workloads=Cache(WORKLOADS, self._child_changed),
            kueue=kueue(),
            nodes=lambda: nodes.snapshot() if follow_nodes.current else None,
            gone_nodes=lambda: nodes.gone_since,
        )
        self._namespaces: Sequence[str | None] = settings.namespaces or [None]
        # The operator cannot decide anything without these.
        self._required: tuple[Reflector[Any], ...] = (
            *self._reflect(caches.pods),
            *self._reflect(caches.services),
            *self._reflect(caches.policies),
        )
        self._reflectors: tuple[Reflector[Any], ...] = (*self._required, follow_nodes)
        self._recorder = Recorder(self._api, settings.identity, time.time)
        turns: Turns[Key] = Turns(
            lambda key: self.queue.add(key, patience_s=PATIENCE_S),
            per_second=PROGRESS_WRITES_PER_S,
            at_least_s=settings.progress_s,
            early_s=settings.agent_poll_s / 2,
        )
        self._poller = Poller(self._ask, self.queue.add, time.time, turns, poll_s=settings.agent_poll_s)
        self._leases = [
            Lease(self._steady, namespace, LEASE, settings.holder, time.time)
            for namespace in settings.lease_namespaces
        ]
        gatherer = Gatherer(
            self._api,
            self.jobs,
            caches,
            self._poller,
            readers=(
                operator_peer(settings.operator_namespace, settings.operator_labels),
                *settings.agent_readers,
            ),
            wall=time.time,
            monotonic=time.monotonic,
        )
        self._reconciler = Reconciler(
            self.jobs,
            caches.pods,
            gatherer,
            Applier(self._api, caches),
            self._recorder,
            self._poller,
            may_act=self._may_act,
        )
        self._tasks: list[asyncio.Task[Any]] = []
        self._servers: list[web.ServerRunner] = []

    async def start(self) -> None:
        """Listen on the ports and start all tasks; returns at once."""
        self._servers = await health.serve(
            live=self._liveness_problem,
            ready=self._readiness_problem,
            health_port=self._settings.health_port,
            metrics_port=self._settings.metrics_port,
        )
        metrics.BUILD.info({"version": VERSION, "python": platform.python_version()})
        metrics.MEMORY_LIMIT.set(metrics.memory_limit())
        metrics.QUEUE_DEPTH.set_function(lambda: len(self.queue))
        metrics.CACHED_PODS.set_function(lambda: len(self._caches.pods))
        metrics.AGENTS.labels("answer").set_function(partial(self._poller.number, silent=False))
        metrics.AGENTS.labels("nothing").set_function(partial(self._poller.number, silent=True))
        for lease in self._leases:
            metrics.LEADER.labels(lease.full_name).set_function(lambda: float(self._may_act()))
        for reflector in self._reflectors:
            self.start_task(f"watch of {reflector.what}", reflector.run())
        caches = self._caches
        self.start_task("gangs", self._follow(caches.gangs, pod_groups_of, caches.pod_groups))
        self.start_task("queues", self._follow(caches.kueue, lambda _: WORKLOADS, caches.workloads))
        self.start_task("rights", self._look_at_rights())
        self.start_task("events", self._recorder.run())
        self.start_task("leadership", self._lead())

    async def stop(self) -> None:
        """Stop all tasks and release the lease."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        JOBS.clear()
        metrics.LEADER.clear()  # the next start may need other Leases
        self.queue.close()
        await self._poller.close()
        await asyncio.gather(*(lease.release() for lease in self._leases))
        for server in self._servers:
            await server.cleanup()
        for client in (self._api, self._steady, self._ask):
            await client.close()

    def on_job(self, key: Key, version: str, *, gone: bool, listed: bool) -> None:
        """Queue a job that kopf's watch reports as changed or deleted.

        listed   the job existed before the watch started, as every job does after an outage
        """
        if gone:
            self.jobs.note_gone(key)
        news = gone or self.jobs.note(key, version)
        if self._leads and news:
            self.queue.add(key, patience_s=BACKLOG_PATIENCE_S if listed else 0.0)

    async def until_served(self) -> None:
        """Wait until the API server serves our kind, and lets the operator read all jobs that it watches."""
        self._unread = self._namespaces
        while problem := await self._problem_with_jobs():
            if problem != self._no_jobs:
                _log.warning("cannot watch the jobs; waiting", extra={"error": problem})
            self._no_jobs = problem
            await asyncio.sleep(UNSERVED_PAUSE_S)
        self._no_jobs = ""

    async def _problem_with_jobs(self) -> str:
        try:
            if not await serves_jobs(self._steady):
                return f"the API server does not serve {names.PLURAL} {names.API_VERSION}: install the CRD"
            problems = await bounded(partial(missing_right, self._steady), self._unread)
        except Unavailable as error:  # mostly a NetworkPolicy that denies outgoing connections
            return f"cannot reach the API server, {error}: does a policy of the network prevent it?"
        self._unread = list(compress(self._unread, problems))
        return next((f"cannot read the jobs: {problem}" for problem in problems if problem), "")

    def doubtful(self) -> Collection[str]:
        """Namespaces in which something that the operator needs has failed the last time."""
        unread = {each.namespace for each in self._required if each.problem}.union(
            self._unread, self._unlisted
        )
        return {name for name in unread if name} | {each.namespace for each in self._leases if each.failed}

    async def _look_at_rights(self) -> None:
        """Ask which rights to write are missing: at the start, and then only if a write was forbidden."""
        while True:
            self._api.forbidden.clear()
            asked = rights.needed(self._namespaces)
            while asked := await rights.denied(self._steady, asked):
                lacks = rights.sentence(asked)
                if lacks != self._lacks:
                    _log.error("rights are missing; no job can run", extra={"error": lacks})
                self._lacks = lacks
                await asyncio.sleep(RIGHTS_PAUSE_S)
            self._lacks = ""
            await asyncio.sleep(self._settings.resync_s)  # quotas and policies forbid too
            await self._api.forbidden.wait()

    async def _follow(self, feature: Feature, source_of: Callable[[str], Source[V]], cache: Cache[V]) -> None:
        """Look now and then whether the API server serves an optional kind, and once it does, watch it.

        Raises NotServed when it no longer does.
        """
        version = await feature.until_served(self._steady, min(optional.LOOK_S, self._settings.resync_s))
        cache.source = source_of(version)
        reflectors = self._reflect(cache)
        self._reflectors = (*self._reflectors, *reflectors)
        for reflector in reflectors:
            self.start_task(f"watch of {reflector.what}", reflector.run())
        await feature.until_cached(version, reflectors)
        if self._leads:  # it was installed after the operator
            for key in self._known():
                self.queue.add(key, patience_s=BACKLOG_PATIENCE_S)
        await feature.until_gone(self._steady, version, reflectors)
        raise NotServed(f"the API server no longer serves {reflectors[0].what} of {version}")

    async def _lead(self) -> None:
        for reflector in self._required:
            await reflector.synced.wait()
        await self._caches.gangs.settled.wait()
        await self._caches.kueue.settled.wait()
        if self._settings.leader_election:
            async for lease in acquire_all(self._leases):
                self.start_task("lease", lease.keep())
        for number in range(self._settings.workers):
            self.start_task(f"worker {number}", work(self.queue, self._reconciler))
        ended = self._with_ended_pods()
        if self._settings.leader_election:
            self._takes_over = True
            for key in ended[:FIRST_JOBS]:
                self._hurry(key)
            # The previous leader may have written after our watches last sent data.
            await self._refill_caches()
            ended = self._with_ended_pods()
        self._leads = True
        for key in ended:
            self.queue.add(key)
        for key in self._known():
            self.queue.add(key, patience_s=BACKLOG_PATIENCE_S)
        await self._resync()

    def _with_ended_pods(self) -> list[Key]:
        """Jobs with pods that have ended or terminate, the latest first: a finished job may keep its pods."""
        moments: dict[Key, float] = {}
        for key in self._known():
            for pod in filter(_is_over, self._caches.pods.of(key)):
                ends = [c.finished_at for c in pod.containers if c.finished_at is not None]
                moments[key] = max(moments.get(key, 0.0), *ends) if ends else float("inf")
        return sorted(moments, key=lambda key: moments[key], reverse=True)

    def _hurry(self, key: Key) -> None:
        """Handle a job before the lists of a new leader are complete; those take seconds in a large cluster.

        Its pods that are over are read first: the previous leader may have replaced them.
        """
        over = [pod.name for pod in self._caches.pods.of(key) if _is_over(pod)]
        if 0 < len(over) <= FEW:
            for name in over:
                self._caches.pods.unverified.add(key, name)
            self.queue.add(key)

    async def _resync(self) -> None:
        """List and reconcile everything from time to time, which limits the harm of a lost event."""
        clock = asyncio.get_running_loop().time
        while True:
            await bounded(self._list_jobs_of, self._namespaces)
            again_at = clock() + self._settings.resync_s
            while (left_s := again_at - clock()) > 0:
                await asyncio.sleep(min(left_s, LIST_PAUSE_S * self._chance.uniform(0.8, 1.2)))
                await bounded(self._list_jobs_of, [*self._unlisted])
            await self._refill_caches()
            for key in self._known():
                delay_s = self._chance.uniform(0, self._settings.resync_s / 10)
                self.queue.add_after(key, delay_s, patience_s=BACKLOG_PATIENCE_S)

    async def _refill_caches(self) -> None:
        """List again what may have changed without an event.

        All kinds at once: a new leader handles no job before it has the lists of those that are required.
        """
        await asyncio.gather(*map(self._relist, self._reflectors))

    async def _relist(self, reflector: Reflector[Any]) -> None:
        """Retry a required list until it succeeds; the watch of another kind continues without the list."""
        limit_s = None if reflector.required else LONGEST_OPTIONAL_LIST_S
        while reflector.current:  # one that is not current is about to relist by itself
            try:
                async with asyncio.timeout(limit_s):
                    await reflector.relist()
            except Exception as error:  # noqa: BLE001 - jobs must be handled again, whatever the list has
                why = str(error) or f"no answer in {limit_s} s"
                _log.warning("relist failed", extra={"what": reflector.what, "error": why})
                if not reflector.required:
                    return
                reflector.problem = why
                await asyncio.sleep(self._chance.uniform(1, 2))
            else:
                return

    async def _list_jobs_of(self, namespace: str | None) -> None:
        """List the jobs and queue those with news.

        Jobs that are known are handled even if the API server cannot list them.
        """
        try:
            found, version = await read_list(
                self._steady, paths.jobs(namespace), wire.decode_names, accept=METADATA_LIST
            )
        except Exception as error:  # noqa: BLE001 - one job must not keep the others from being listed later
            _log.warning(
                "cannot list the jobs", extra={"job_namespace": namespace or "all", "error": str(error)}
            )
            self._unlisted.add(namespace)
            return
        self._unlisted.discard(namespace)
        metas = (item.metadata for item in found)
        jobs = {Key(meta.namespace, meta.name): meta.resource_version for meta in metas}
        for key in self.jobs.note_all(jobs, version, namespace):
            self.queue.add(key, patience_s=BACKLOG_PATIENCE_S)

    def _known(self) -> set[Key]:
        """Jobs, and jobs that are gone but have left something."""
        caches = (self._caches.pods, *self._caches.children)
        return set(self.jobs.shown).union(*(cache.keys() for cache in caches))

    def _child_changed(self, key: Key, can_wait: bool = False) -> None:
        if not self._leads:
            if self._takes_over and not can_wait:
                self._hurry(key)
            return
        if can_wait or key not in self.jobs.shown:  # the children of a deleted job disappear one by one
            self.queue.add_after(key, POD_CHANGE_DELAY_S, patience_s=PATIENCE_S)
        else:
            self.queue.add(key)

    def _node_changed(self, node: str) -> None:
        if self._leads:
            for key in self._caches.pods.jobs_on(node):
                self.queue.add(key)

    def _reflect(self, cache: Cache[V]) -> tuple[Reflector[V], ...]:
        """Return what fills a cache: one for each watched namespace, or one for all."""
        return tuple(
            Reflector(self._steady, cache, namespace, self._chance) for namespace in self._namespaces
        )

    def start_task(self, name: str, coroutine: Coroutine[Any, Any, Any]) -> None:
        """Run it until the stop; if it ends before, the process exits."""
        task = asyncio.create_task(coroutine, name=name)
        task.add_done_callback(self._task_ended)
        self._tasks.append(task)

    def _task_ended(self, task: asyncio.Task[Any]) -> None:
        """Exit at once: after the lease is lost nothing more may be written, not even during cleanup."""
        if task not in self._tasks or task.cancelled():
            return
        error = task.exception()
        fields = {"task": task.get_name(), "error": str(error)}
        _log.critical("exiting: background task failed", extra=fields, exc_info=error)
        sys.stderr.flush()
        os._exit(1)

    def _may_act(self) -> bool:
        return all(lease.held for lease in self._leases) or not self._settings.leader_election

    def _liveness_problem(self) -> str | None:
        now = asyncio.get_running_loop().time()
        for reflector in self._required:
            silent_s = now - reflector.last_data_at
            if reflector.synced.is_set() and silent_s > 4 * SILENCE_S:
                return f"no data from the {reflector.what} watch for {silent_s:.0f} s"
        return None

    def _readiness_problem(self) -> str | None:
        if self._no_jobs:
            return self._no_jobs
        empty = [each for each in self._required if not each.synced.is_set()]
        # Several namespaces mostly have the same problem.
        lines = dict.fromkeys(f"{each.what}: {each.problem}" if each.problem else each.what for each in empty)
        if lines:
            return f"caches not filled yet: {', '.join(lines)}"
        refused = dict.fromkeys(lease.refused for lease in self._leases if lease.refused)
        return f"cannot use the Lease: {', '.join(refused)}" if refused else self._lacks or None


def _is_over(pod: PodView) -> bool:
    return pod.ended or pod.deleting
