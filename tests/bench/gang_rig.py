"""A control plane whose scheduler places gangs; namespaces with nodes of their own."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dtj_operator.model import names
from tests.bench.rig import REQUESTS_PER_S
from tests.cluster import tools
from tests.integration import api as rest
from tests.integration import controlplane
from tests.integration import kubelet as kubelets
from tests.integration.api import JOBS, PODS, Api
from tests.integration.chart.conftest import Helm
from tests.integration.controlplane import ControlPlane
from tests.integration.kubelet import Kubelet, runs
from tests.integration.operator import process
from tests.integration.operator.conftest import grant

Json = dict[str, Any]
WITH, WITHOUT = "Auto", "None"  # spec.scheduling.gang
SIDES = {WITH: "gangs", WITHOUT: "pod by pod"}
NODES = "/api/v1/nodes"
# The scheduler's client rate; its default of 50 requests a second would be what the benchmark measures.
SCHEDULER = ("--kube-api-qps=1000", "--kube-api-burst=2000")
# The node has to be used again after faults: there is no other one.
RECOVERY: Json = {
    "backoffSeconds": 0,
    "maxRestarts": 1000,
    "maxRestartsWithoutProgress": 1000,
    "avoidNodeAfterFaults": "Never",
}


@dataclass(frozen=True, kw_only=True)
class Rig:
    """A running control plane and operator."""

    plane: ControlPlane
    api: Api

    @contextlib.asynccontextmanager
    async def pool(self, name: str, *, nodes: int, capacity: int) -> AsyncIterator[Pool]:
        """Add a namespace with a number of nodes, each with capacity for a number of pods, and a kubelet."""
        await self.api.create("/api/v1/namespaces", {"metadata": {"name": name}})
        added = [f"{name}-{number}" for number in range(nodes)]
        await asyncio.gather(*(self._add_node(node, name, capacity) for node in added))
        async with kubelets.playing(self.api, name, places=False) as kubelet:
            try:
                yield Pool(api=self.api, kubelet=kubelet, name=name)
                await self.api.delete(JOBS.format(name))
                await kubelet.until(lambda pods: not pods)
            finally:
                for node in added:
                    await self.api.delete(f"{NODES}/{node}")

    async def _add_node(self, name: str, pool: str, capacity: int) -> None:
        resources = {"cpu": str(capacity), "memory": "1Ti", "pods": "1000"}
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "ready"}
        status = {"capacity": resources, "allocatable": resources, "conditions": [ready]}
        meta = {"name": name, "labels": {"pool": pool}}
        await self.api.create(NODES, {"metadata": meta, "status": status})
        await self.api.patch(f"{NODES}/{name}", {"spec": {"taints": None}})  # not-ready, set for new nodes


@dataclass(frozen=True, kw_only=True)
class Pool:
    """A namespace whose jobs run on nodes of their own; each pod needs one CPU."""

    api: Api
    kubelet: Kubelet
    name: str

    async def submit(self, job: str, *, replicas: int, gang: str, scope: str = "Job") -> None:
        """Create a job."""
        container = {"name": "trainer", "image": "trainer:1", "resources": {"requests": {"cpu": "1"}}}
        pod = {
            "containers": [container],
            "terminationGracePeriodSeconds": 1,
            "nodeSelector": {"pool": self.name},
        }
        spec = {
            "replicas": replicas,
            "recovery": {"scope": scope, **RECOVERY},
            "scheduling": {"gang": gang},
            "template": {"spec": pod},
        }
        manifest = {
            "apiVersion": "dtj.dev/v1alpha1",
            "kind": "DistributedTrainingJob",
            "metadata": {"name": job},
            "spec": spec,
        }
        await self.api.create(JOBS.format(self.name), manifest)

    def state(self, job: str, replicas: int) -> State:
        """Return how many of a job's pods are placed, run and have succeeded."""
        pods = [pod for i in range(replicas) if (pod := self.kubelet.pods.get(f"{job}-{i}")) is not None]
        placed = [pod for pod in pods if _is_placed(pod)]
        return State(
            placed=len(placed),
            running=sum(map(runs, pods)),
            needed=replicas - sum(pod["status"].get("phase") == "Succeeded" for pod in pods),
            attempts=frozenset(pod["metadata"]["labels"][names.ATTEMPT] for pod in placed),
        )

    async def finish(self, job: str, replicas: int) -> None:
        """Let all pods of a job that run exit with code 0."""
        pods = self.kubelet.pods
        named = [f"{job}-{i}" for i in range(replicas)]
        await asyncio.gather(*(self.kubelet.finish(name) for name in named if runs(pods[name])))


def _is_placed(pod: Json) -> bool:
    ended = pod["status"].get("phase") in ("Succeeded", "Failed")
    return "nodeName" in pod["spec"] and "deletionTimestamp" not in pod["metadata"] and not ended


@dataclass(frozen=True, kw_only=True)
class State:
    """The pods of a job.

    placed    have a node and are neither ended nor deleted
    running   run
    needed    have not succeeded: so many must be placed
    attempts  to which the placed pods belong
    """

    placed: int
    running: int
    needed: int
    attempts: frozenset[str]

    @property
    def whole(self) -> bool:
        """Whether all pods run that have not succeeded."""
        return 0 < self.running == self.needed

    @property
    def complete(self) -> bool:
        """Whether all pods that have not succeeded are placed."""
        return 0 < self.placed == self.needed

    @property
    def partial(self) -> bool:
        """Whether some pods are placed and others are not."""
        return 0 < self.placed < self.needed


@contextlib.asynccontextmanager
async def running() -> AsyncIterator[Rig]:
    """Start the control plane and an operator."""
    programs = tools.ensure("helm")
    with (
        tempfile.TemporaryDirectory(prefix="dtj-bench-") as name,
        controlplane.placing_gangs(Path(name), scheduler=SCHEDULER) as plane,
    ):
        controlplane.install_crd(plane)
        (Path(name) / "helm").mkdir()
        grant(Helm(programs["helm"], Path(name) / "helm"), plane)
        async with rest.connect(plane) as api, process.running(plane, rate=REQUESTS_PER_S):
            yield Rig(plane=plane, api=api)


async def placed(api: Api, namespace: str, version: str, count: int) -> tuple[float, float]:
    """Watch pods from a version on; return the monotonic times at which `count` were created and placed."""
    clock = asyncio.get_running_loop().time
    created: set[str] = set()
    bound: set[str] = set()
    created_at = 0.0
    while True:  # a busy API server cuts watches
        async with contextlib.aclosing(api.follow(PODS.format(namespace), version)) as events:
            async for _, pod in events:
                uid, version = pod["metadata"]["uid"], pod["metadata"]["resourceVersion"]
                if uid not in created:
                    created.add(uid)
                    created_at = clock()
                if "nodeName" in pod["spec"]:
                    bound.add(uid)
                if len(bound) == count:
                    return created_at, clock()
