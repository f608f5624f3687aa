"""The running operator: its parts wired together, and the tasks that drive them.

Follower and leader differ in one thing: the leader's workers take keys from the queue. Everything else
(watch, cache, queue) runs in both, so that a follower takes over with warm caches. If any of the tasks
ends, the process ends: a restart is the one recovery that always works.
"""

import asyncio
import logging
import os
import random
import sys
import time
from collections.abc import Coroutine
from typing import Any, NoReturn, TypeVar

from aiohttp import web
from kubernetes.aio.client import Configuration

from dtj_operator import health, metrics, names
from dtj_operator.apply import Applier
from dtj_operator.engine.worker import work
from dtj_operator.engine.workqueue import WorkQueue
from dtj_operator.gather import Caches, Gatherer
from dtj_operator.health import Health
from dtj_operator.kube import wire
from dtj_operator.kube.api import Api
from dtj_operator.kube.bucket import Bucket
from dtj_operator.kube.cache import Cache, PodCache, View
from dtj_operator.kube.children import NETWORK_POLICY, SERVICE, ChildCache
from dtj_operator.kube.doubts import Doubts
from dtj_operator.kube.errors import ApiError
from dtj_operator.kube.lease import Lease
from dtj_operator.kube.node_leases import NodeLeases
from dtj_operator.kube.nodes import NodeCache
from dtj_operator.kube.recorder import Recorder
from dtj_operator.kube.reflector import (
    NETWORK_POLICIES,
    NODES,
    PODS,
    SERVICES,
    SILENCE_S,
    Reflector,
    Source,
    read_list,
)
from dtj_operator.names import Key
from dtj_operator.progress import HttpAsk, Poller
from dtj_operator.reconcile import Reconciler
from dtj_operator.settings import Settings

UNLIMITED = 1e9  # requests a second of the watch and the lease: there are few, and they must not wait
SETTLE_S = 0.2  # a pod that starts changes several times in a row: one look at the end is enough
PATIENCE_S = 2.0  # and while many jobs are begun at once, making their pods goes before telling of them
STUCK_S = 300.0  # a key that waits this long for a worker means that no worker works

V = TypeVar("V", bound=View)

_log = logging.getLogger(__name__)


class Core:
    def __init__(self, settings: Settings, config: Configuration) -> None:
        chance = random.Random()
        self._settings, self._chance = settings, chance
        who, bucket = settings.identity, Bucket(settings.requests_per_second)
        self._api = Api(config, bucket, chance, identity=who, may_write=self._may_act)
        # Watches and the lease: a burst of writes cannot starve them.
        self._steady = Api(config, Bucket(UNLIMITED), chance, identity=who)
        self._ask = HttpAsk()
        self.queue: WorkQueue[Key] = WorkQueue(chance)
        self.jobs: set[Key] = set()  # every job that kopf's watch has shown
        pods = PodCache(self._child_changed, self.queue.hasten, Doubts(time.monotonic))
        nodes = NodeCache(self._wake_node)
        services = ChildCache(SERVICE, self._child_changed, Doubts(time.monotonic))
        policies = ChildCache(NETWORK_POLICY, self._child_changed, Doubts(time.monotonic))

        def reflect(source: Source[V], cache: Cache[V]) -> Reflector[V]:
            return Reflector(self._steady, source, cache, settings.namespace, chance)

        follow_pods = reflect(PODS, pods)
        follow_nodes = reflect(NODES, nodes)
        self._pods = pods
        # Without these nothing can be decided.
        self._needed: tuple[Reflector[Any], ...] = (
            follow_pods,
            reflect(SERVICES, services),
            reflect(NETWORK_POLICIES, policies),
        )
        self._reflectors: tuple[Reflector[Any], ...] = (*self._needed, follow_nodes)
        caches = Caches(
            pods=pods,
            services=services,
            policies=policies,
            nodes=lambda: nodes.snapshot() if follow_nodes.current else None,
        )
        self._recorder = Recorder(self._api, settings.identity, time.time)
        self._poller = Poller(
            self._ask, self.queue.add, time.time, every_s=settings.agent_poll_s, tell_s=settings.progress_s
        )
        self._lease = Lease(
            self._steady, settings.operator_namespace, settings.lease_name, settings.identity, time.time
        )
        gatherer = Gatherer(
            self._api,
            caches,
            follow_pods.refresh,
            self._poller,
            NodeLeases(self._api.get),
            operator_namespace=settings.operator_namespace,
            wall=time.time,
        )
        self._reconciler = Reconciler(
            self._api,
            pods,
            gatherer,
            Applier(self._api, caches),
            self._recorder,
            self._poller,
            progress_s=settings.progress_s,
            may_act=self._may_act,
        )
        self._tasks: list[asyncio.Task[Any]] = []
        self._servers: list[web.AppRunner] = []

    async def start(self) -> None:
        """Listen, and begin all tasks; returns at once."""
        probes = Health(live=self._stuck, ready=self._unready)
        self._servers = await health.serve(
            probes, health_port=self._settings.health_port, metrics_port=self._settings.metrics_port
        )
        metrics.QUEUE_DEPTH.set_function(lambda: len(self.queue))
        metrics.PODS.set_function(lambda: len(self._pods))
        for reflector in self._reflectors:
            self._begin(f"watch of {reflector.what}", reflector.run())
        self._begin("events", self._recorder.run())
        self._begin("leadership", self._lead())

    async def stop(self) -> None:
        """End everything and give the lease back."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.queue.close()
        await self._poller.close()
        if self._settings.leader_election:
            await self._lease.release()
        for server in self._servers:
            await server.cleanup()
        for client in (self._api, self._steady, self._ask):
            await client.close()

    def seen(self, key: Key, version: str, *, gone: bool, listed: bool) -> None:
        """Kopf's watch shows a job, or that one is gone.

        listed   it was there before the watch began: after a restart, what has failed meanwhile goes first
        """
        if gone:
            self.jobs.discard(key)
        else:
            self.jobs.add(key)
        if gone or not self._reconciler.wrote(key, version):
            self.queue.add(key, patience_s=PATIENCE_S if listed else 0.0)

    async def _lead(self) -> None:
        for reflector in self._needed:
            await reflector.synced.wait()
        if self._settings.leader_election:
            await self._lease.acquire()
            self._begin("lease", self._lease.keep())
            # The leader before us may have written after our watches last spoke.
            await self._relist()
        for number in range(self._settings.workers):
            self._begin(f"worker {number}", work(self.queue, self._reconciler))
        await self._resync()

    async def _resync(self) -> None:
        """Read and look at everything now and then: the bound on the harm of an event that was lost."""
        while True:
            await asyncio.sleep(self._settings.resync_s)
            await self._relist()
            for key in self.jobs.union(*(reflector.keys() for reflector in self._needed)):
                self.queue.add_after(key, self._chance.uniform(0, self._settings.resync_s / 10))

    async def _relist(self) -> None:
        """Fill the caches anew, and learn of jobs whose event never came; in whatever time it takes."""
        while True:
            try:
                for reflector in self._reflectors:
                    if reflector.current:  # one that is not is about to do so itself
                        await reflector.relist()
                self.jobs = await self._list_jobs()
            except ApiError as error:
                _log.warning("relist failed; retrying", extra={"error": str(error)})
                await asyncio.sleep(self._chance.uniform(1, 2))
            else:
                return

    async def _list_jobs(self) -> set[Key]:
        found = await read_list(self._steady, names.jobs_path(self._settings.namespace), wire.decode_names)
        return {Key(item.metadata.namespace, item.metadata.name) for item in found[0]}

    def _child_changed(self, key: Key, can_wait: bool = False) -> None:
        if can_wait or key not in self.jobs:  # what is left of a job that is gone leaves bit by bit
            self.queue.add_after(key, SETTLE_S, patience_s=PATIENCE_S)
        else:
            self.queue.add(key)

    def _wake_node(self, node: str) -> None:
        for key in self._pods.jobs_on(node):
            self.queue.add(key)

    def _begin(self, name: str, coroutine: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.create_task(coroutine, name=name)
        task.add_done_callback(self._ended)
        self._tasks.append(task)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        if task in self._tasks and not task.cancelled():
            _die(task.get_name(), task.exception())

    def _may_act(self) -> bool:
        return self._lease.held or not self._settings.leader_election

    def _stuck(self) -> str | None:
        now = asyncio.get_running_loop().time()
        for reflector in self._needed:
            silent_s = now - reflector.last_news
            if reflector.synced.is_set() and silent_s > 4 * SILENCE_S:
                return f"no data from the {reflector.what} watch for {silent_s:.0f} s"
        if self._may_act() and self.queue.oldest_s() > STUCK_S:
            return f"a job has been waiting in the queue for {self.queue.oldest_s():.0f} s"
        return None

    def _unready(self) -> str | None:
        empty = [reflector.what for reflector in self._needed if not reflector.synced.is_set()]
        return f"caches not filled yet: {', '.join(empty)}" if empty else None


def _die(name: str, error: BaseException | None) -> NoReturn:
    """End the process now: after a lost lease nothing more may be written, not even while cleaning up."""
    _log.critical(
        "exiting: background task failed", extra={"task": name, "error": str(error)}, exc_info=error
    )
    sys.stderr.flush()
    os._exit(1)
