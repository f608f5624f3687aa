"""Faults, one function each: in operators, their connections to the API server, pods and jobs.

More are in hostile.py.
A fault draws its own victim from the seeded generator, and returns whether there was one. `Chaos.relent` ends
all faults that last.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from tests.chaos.clock import Clock
from tests.integration.api import JOBS, PODS, POLICIES, SERVICES, Api, ApiError
from tests.integration.controlplane import ControlPlane
from tests.integration.kubelet import Kubelet, runs
from tests.integration.operator.process import Kept, Operator
from tests.support.faultproxy import Fault, FaultProxy, calling, faithful, is_watch, losing

Json = dict[str, Any]
BINDING = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/dtj-operator-dtj-system"


@dataclass
class Chaos:
    """Everything that faults can affect.

    proxies    one in front of each operator
    operators  in the order of the proxies
    agent      the address of an agent that answers nonsense
    made       number of jobs created so far
    strangers  paths of objects that are deleted in the end
    undo       called in the end, in this order
    """

    plane: ControlPlane
    api: Api
    namespace: str
    kubelet: Kubelet
    proxies: list[FaultProxy]
    operators: list[Kept]
    clock: Clock
    agent: str
    chance: Random
    made: int = 0
    strangers: list[str] = field(default_factory=list)
    undo: list[Callable[[], Awaitable[object]]] = field(default_factory=list)
    suspended: set[str] = field(default_factory=set)

    async def relent(self) -> None:
        """End all faults that last; no new ones follow."""
        self.clock.shift(0)
        for proxy in self.proxies:
            proxy.clear()
            proxy.mangle, proxy.silent = faithful, False
        for operator in self.operators:
            if operator.now is not None:
                operator.now.thaw()
        for path in self.strangers:
            with contextlib.suppress(ApiError):
                await self.api.delete(path)
        for back in self.undo:
            with contextlib.suppress(ApiError):
                await back()
        for name in list(self.kubelet.holds):
            await self.kubelet.release(name)
        for node in list(self.kubelet.sick):
            await self.kubelet.recover(node)

    def path(self, folder: str, name: str) -> str:
        """Return the path of an object of the namespace."""
        return f"{folder.format(self.namespace)}/{name}"

    async def make(self, name: str = "") -> str:
        """Create a job with a random specification."""
        name = name or f"job-{self.made}"
        self.made += 1
        rng = self.chance
        container = {"name": "trainer", "image": "trainer:1"}
        spec = {
            "replicas": rng.randint(1, 4),
            **rng.choice([{}, {}, {"successPolicy": {"replicas": [0]}}]),
            "cleanPodPolicy": rng.choice(["Running", "Running", "All"]),
            "network": {"policy": "Isolated"},
            "recovery": {
                "backoffSeconds": 0,
                "maxRestarts": rng.choice([0, 2, 5, 100]),
                "scope": rng.choice(["Auto", "Job", "Replica"]),
                "terminationSeconds": rng.choice([1, 300]),
            },
            "template": {"spec": {"containers": [container], "terminationGracePeriodSeconds": 1}},
        }
        body = {
            "apiVersion": "dtj.dev/v1alpha1",
            "kind": "DistributedTrainingJob",
            "metadata": {"name": name},
        }
        await self.api.create(JOBS.format(self.namespace), {**body, "spec": spec})
        return name

    async def some_job(self, *phases: str) -> str | None:
        """Return the name of a job in one of these phases; None if there is none."""
        jobs = await self.api.items(JOBS.format(self.namespace))
        fitting = [j["metadata"]["name"] for j in jobs if j.get("status", {}).get("phase", "") in phases]
        return self.chance.choice(fitting) if fitting else None

    def some_pod(self) -> str | None:
        """Return the name of a running pod."""
        fitting = sorted(name for name, pod in self.kubelet.pods.items() if runs(pod))
        return self.chance.choice(fitting) if fitting else None


Injection = Callable[[Chaos], Awaitable[bool]]
INJECTIONS: dict[str, tuple[int, Injection]] = {}


def injection(weight: int) -> Callable[[Injection], Injection]:
    """Register a fault to be drawn, `weight` times as likely as the others."""

    def register(each: Injection) -> Injection:
        INJECTIONS[each.__name__] = weight, each
        return each

    return register


def some_operator(stage: Chaos) -> Operator | None:
    """Return one of the operators, leader or not; None if the drawn one has exited."""
    chosen = stage.chance.choice(stage.operators).now
    return None if chosen is None or chosen.process.returncode is not None else chosen


@injection(1)
async def kill_operator(stage: Chaos) -> bool:
    """SIGKILL."""
    victim = some_operator(stage)
    if victim is None:
        return False
    await victim.kill()
    return True


@injection(1)
async def stop_operator(stage: Chaos) -> bool:
    """SIGTERM."""
    victim = some_operator(stage)
    if victim is None:
        return False
    victim.process.terminate()
    return True


@injection(1)
async def freeze_operator(stage: Chaos) -> bool:
    """SIGSTOP for a moment."""
    victim = some_operator(stage)
    if victim is None:
        return False
    victim.freeze()
    await asyncio.sleep(stage.chance.uniform(0.1, 1.5))
    victim.thaw()
    return True


def refusing(name: str, status: int, *matches: Any, headers: tuple[tuple[str, str], ...] = ()) -> None:
    """Register a fault: for one operator, the API server answers some calls like this."""

    async def refuse(stage: Chaos) -> bool:
        times = stage.chance.randint(1, 4)
        fault = Fault(stage.chance.choice(matches), status, times=times, headers=headers)
        stage.chance.choice(stage.proxies).inject(fault)
        return True

    refuse.__name__ = name
    injection(2)(refuse)


WRITES = (
    calling("POST", "pods"),
    calling("POST", "services"),
    calling("POST", "networkpolicies"),
    calling("PATCH", "status"),
    calling("DELETE", "pods"),
    calling("DELETE", "services"),
)
READS = (calling("GET", "distributedtrainingjobs"), calling("GET", "pods"), calling("GET", "services"))
refusing("too_many_requests", 429, *WRITES, *READS, headers=(("Retry-After", "1"),))
refusing("server_error", 500, *WRITES, *READS)
refusing("unavailable", 503, *WRITES, *READS)
refusing("conflict", 409, calling("PATCH", "status"))
refusing("answer_lost", 0, *WRITES)
refusing("history_gone", 410, is_watch)


@injection(2)
async def delay(stage: Chaos) -> bool:
    """Delay some requests."""
    late_s = stage.chance.uniform(0.2, 2.0)
    fault = Fault(lambda request: not is_watch(request), 0, times=stage.chance.randint(1, 10), late_s=late_s)
    stage.chance.choice(stage.proxies).inject(fault)
    return True


@injection(2)
async def cut_watches(stage: Chaos) -> bool:
    """Cut every watch of one operator."""
    return stage.chance.choice(stage.proxies).cut_watches() > 0


@injection(1)
async def silence_watches(stage: Chaos) -> bool:
    """Silence the watches for a while, or end that."""
    proxy = stage.chance.choice(stage.proxies)
    proxy.silent = not proxy.silent
    return True


@injection(1)
async def mangle_watches(stage: Chaos) -> bool:
    """Lose, duplicate and reorder events for a while, or end that."""
    proxy = stage.chance.choice(stage.proxies)
    cruel = losing(stage.chance, lost=0.1, doubled=0.1, swapped=0.1)
    proxy.mangle = cruel if proxy.mangle is faithful else faithful
    return True


@injection(1)
async def set_clock(stage: Chaos) -> bool:
    """Set the operators' clocks a minute or an hour off, or right again."""
    minute = 1 / 60
    stage.clock.shift(stage.chance.choice([-1, -minute, 0, 0, minute, 1]))
    return bool(stage.clock.environment)


@injection(1)
async def compact_etcd(stage: Chaos) -> bool:
    """Compact the history of etcd."""
    await asyncio.to_thread(stage.plane.compact)
    return True


@injection(1)
async def restart_apiserver(stage: Chaos) -> bool:
    """SIGKILL the API server: its memory is lost, and it takes seconds to come back."""
    await asyncio.to_thread(stage.plane.restart, stage.plane.apiserver)
    return True


@injection(1)
async def take_rights(stage: Chaos) -> bool:
    """Revoke the operators' permissions for a moment."""
    binding = await stage.api.get(BINDING)
    await stage.api.delete(BINDING)
    try:
        await asyncio.sleep(stage.chance.uniform(0.1, 1.0))
    finally:
        del binding["metadata"]["resourceVersion"]
        await stage.api.create(BINDING.rpartition("/")[0], binding)
    return True


@injection(5)
async def crash_pod(stage: Chaos) -> bool:
    """A rank fails in one of several ways."""
    name = stage.some_pod()
    if name is not None:
        await stage.kubelet.finish(name, stage.chance.choice([1, 1, 75, 137]))
    return name is not None


@injection(3)
async def finish_pod(stage: Chaos) -> bool:
    """A rank succeeds."""
    name = stage.some_pod()
    if name is not None:
        await stage.kubelet.finish(name)
    return name is not None


@injection(2)
async def hold_pod(stage: Chaos) -> bool:
    """A node delays the end of a deleted pod, or finally ends it."""
    if stage.kubelet.holds and stage.chance.random() < 0.7:
        await stage.kubelet.release(stage.chance.choice(sorted(stage.kubelet.holds)))
        return True
    name = stage.some_pod()
    if name is not None:
        stage.kubelet.holds.add(name)
    return name is not None


@injection(2)
async def sicken_node(stage: Chaos) -> bool:
    """A node stays Ready, but its kubelet neither starts nor stops a pod, until it recovers."""
    if stage.kubelet.sick and stage.chance.random() < 0.6:
        await stage.kubelet.recover(stage.chance.choice(sorted(stage.kubelet.sick)))
        return True
    nodes = sorted({pod["spec"].get("nodeName", "") for pod in stage.kubelet.pods.values() if runs(pod)})
    if nodes:
        stage.kubelet.sick.add(stage.chance.choice(nodes))
    return bool(nodes)


@injection(4)
async def delete_pod(stage: Chaos) -> bool:
    """A user deletes a pod."""
    name = stage.some_pod()
    if name is not None:
        await stage.api.delete(stage.path(PODS, name))
    return name is not None


@injection(2)
async def relabel_pod(stage: Chaos) -> bool:
    """A user edits a pod's labels."""
    name = stage.some_pod()
    changes: list[Json] = [
        {"dtj.dev/job-name": None},
        {"dtj.dev/job-name": "job-0"},
        {"dtj.dev/attempt": "99"},
        {"dtj.dev/replica-index": "x"},
    ]
    if name is not None:
        labels = stage.chance.choice(changes)
        await stage.api.patch(stage.path(PODS, name), {"metadata": {"labels": labels}})
    return name is not None


@injection(2)
async def spoil_network(stage: Chaos) -> bool:
    """A user deletes or edits a Service or a NetworkPolicy."""
    name = await stage.some_job("Running")
    if name is None:
        return False
    folder = stage.chance.choice([SERVICES, POLICIES])
    path = stage.path(folder, name)
    edit: Json = {"selector": {"a": "b"}} if folder == SERVICES else {"ingress": [{}]}
    if stage.chance.random() < 0.5:
        await stage.api.delete(path)
    else:
        await stage.api.patch(path, {"spec": edit})
    return True


@injection(1)
async def relabel_network(stage: Chaos) -> bool:
    """A user removes our label from a Service or a NetworkPolicy."""
    name = await stage.some_job("Running")
    if name is not None:
        path = stage.path(stage.chance.choice([SERVICES, POLICIES]), name)
        await stage.api.patch(path, {"metadata": {"labels": {"dtj.dev/job-name": None}}})
    return name is not None


@injection(2)
async def stand_in_the_way(stage: Chaos) -> bool:
    """A foreign Service has the name that the next job needs; it is deleted later."""
    if stage.strangers and stage.chance.random() < 0.6:
        await stage.api.delete(stage.strangers.pop())
        return True
    body: Json = {"metadata": {"name": f"job-{stage.made}"}, "spec": {"ports": [{"port": 80}]}}
    await stage.api.create(SERVICES.format(stage.namespace), body)
    stage.strangers.append(stage.path(SERVICES, f"job-{stage.made}"))
    return True


@injection(3)
async def delete_job(stage: Chaos) -> bool:
    """A user deletes a job, and perhaps immediately creates another with the same name."""
    name = await stage.some_job("Pending", "Starting", "Running", "Recovering", "Suspended", "Succeeded")
    if name is None:
        return False
    await stage.api.delete(stage.path(JOBS, name))
    if stage.chance.random() < 0.5:
        await stage.make(name)
    return True


@injection(2)
async def suspend_job(stage: Chaos) -> bool:
    """A user suspends or resumes a job."""
    name = await stage.some_job("Running", "Starting", "Recovering", "Suspended")
    if name is None:
        return False
    job = await stage.api.get(stage.path(JOBS, name))
    await stage.api.patch(
        stage.path(JOBS, name), {"spec": {"suspend": not job["spec"].get("suspend", False)}}
    )
    return True
