"""A seeded run: jobs are created and deleted under two operators while every fault happens many times.

Afterwards the faults stop, and every job has to reach the state that its spec asks for; then all jobs
succeed, and then all are deleted. The witness, which watches from before the first job, reports all
violations. The same seed draws the same faults; what they hit depends on the state of the cluster at that
moment.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import aiohttp

from tests.chaos import hostile
from tests.chaos.clock import Clock
from tests.chaos.faults import INJECTIONS, Chaos
from tests.chaos.invariants import controller
from tests.chaos.witness import Witness, watching
from tests.integration import api as rest
from tests.integration import kubelet as kubelets
from tests.integration.api import JOBS, PODS, POLICIES, SERVICES, ApiError
from tests.integration.controlplane import ControlPlane, install_crd
from tests.integration.kubelet import runs
from tests.integration.operator import process
from tests.integration.operator.process import Operator
from tests.support.faultproxy import FaultProxy

Json = dict[str, Any]
NODES = "/api/v1/nodes"
NODE_NAMES = [f"node-{index}" for index in range(4)]  # a job has at most four replicas
PAUSE_S = 0.4  # between two faults, at most: jobs need time to start
SETTLE_S = 120.0  # a lease may have to run out first, and back-offs


@dataclass
class Result:
    """Result of a run.

    faults       how many times each fault found a victim
    deaths       how many times an operator's process exited
    exits        the last line of each that exited with an error
    seconds      of the run, including the time to settle
    violations   empty if all is well
    """

    seed: int
    jobs: int = 0
    pods: int = 0
    events: int = 0
    deaths: int = 0
    seconds: float = 0.0
    exits: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)


async def run(
    plane: ControlPlane,
    namespace: str,
    folder: Path,
    *,
    seed: int,
    faults: int,
    jobs: int,
    without: frozenset[str] = frozenset(),
) -> Result:
    """Inject `faults` faults while about `jobs` jobs exist; the operator's roles must be granted.

    without   names of faults to leave out
    """
    began, result, chance = time.monotonic(), Result(seed), Random(seed)
    async with (
        rest.connect(plane) as api,
        watching(api, namespace) as witness,
        kubelets.playing(api, namespace) as kubelet,
        stage_of(plane, api, namespace, folder, kubelet, chance) as stage,
    ):
        await inject(stage, result, faults, jobs, without)
        await stage.relent()
        await asyncio.to_thread(install_crd, plane)  # faults may have changed it
        await collect_garbage(stage)
        result.violations += await settled(witness, "after the faults")
        await finish_all(stage)
        result.violations += await settled(witness, "after all pods were done")
        for job in await api.items(JOBS.format(namespace)):
            await api.delete(stage.path(JOBS, job["metadata"]["name"]))
        await collect_garbage(stage)
        result.violations += await settled(witness, "after all jobs were deleted")
        result.violations += witness.violations()
        result.jobs, result.pods, result.events = stage.made, witness.births, len(witness.events)
        dead = [each for operator in stage.operators for each in operator.dead]
        result.deaths = len(dead)
        result.exits.update(last_line(each) for each in dead if (each.process.returncode or 0) > 0)
    result.seconds = time.monotonic() - began
    return result


async def inject(stage: Chaos, result: Result, faults: int, jobs: int, without: frozenset[str]) -> None:
    """Inject faults until enough have found a victim; keep enough jobs for them to hit."""
    names = [name for name in INJECTIONS if name not in without]
    weights = [INJECTIONS[name][0] for name in names]
    while result.faults.total() < faults:
        with contextlib.suppress(ApiError, aiohttp.ClientError, OSError):
            if await alive(stage) < jobs:
                await stage.make()
        (name,) = stage.chance.choices(names, weights)
        # The victim, or the server, may be gone by now.
        with contextlib.suppress(ApiError, KeyError, aiohttp.ClientError, OSError):
            result.faults[name] += await INJECTIONS[name][1](stage)
        await asyncio.sleep(stage.chance.uniform(0, PAUSE_S))  # a random time for the cluster to react


async def alive(stage: Chaos) -> int:
    """Return the number of unfinished jobs."""
    found = await stage.api.items(JOBS.format(stage.namespace))
    return sum(job.get("status", {}).get("phase") not in ("Succeeded", "Failed") for job in found)


async def collect_garbage(stage: Chaos) -> None:
    """Act as Kubernetes' garbage collector, which does not run here.

    It deletes only what the operator cannot see: children whose label was removed, and whose job ended or was
    deleted before the operator noticed. Any other orphan is the operator's fault, and stays for the witness.
    """
    jobs = {job["metadata"]["uid"] for job in await stage.api.items(JOBS.format(stage.namespace))}
    for folder in (PODS, SERVICES, POLICIES):
        for child in await stage.api.items(folder.format(stage.namespace)):
            meta, owner = child["metadata"], controller(child).get("uid")
            if "dtj.dev/job-name" not in meta.get("labels", {}) and owner and owner not in jobs:
                try:
                    await stage.api.delete(stage.path(folder, meta["name"]), gracePeriodSeconds=0)
                except ApiError as error:
                    if error.status != 404:  # the operator saw it and deleted it
                        raise


async def finish_all(stage: Chaos) -> None:
    """Let every pod succeed, also those that are created meanwhile."""
    while running := [name for name, pod in stage.kubelet.pods.items() if runs(pod)]:
        for name in running:
            with contextlib.suppress(ApiError, KeyError):
                await stage.kubelet.finish(name)
        await asyncio.sleep(0.1)  # until the kubelet sees it


def last_line(operator: Operator) -> str:
    """Return the last line of an operator's log, without its time."""
    lines = operator.log.read_text(errors="replace").splitlines() or [""]
    return lines[-1].partition(" ")[2][:300]


async def settled(witness: Witness, when: str) -> list[str]:
    """Return what is still wrong after the deadline."""
    try:
        await witness.settled(within_s=SETTLE_S)
    except AssertionError as error:
        return [f"{when}: {error}"]
    return []


@contextlib.asynccontextmanager
async def ready_nodes(api: rest.Api) -> AsyncIterator[None]:
    """Create the nodes on which the kubelet places pods; they are Ready whatever happens."""
    for name in NODE_NAMES:
        await api.create(NODES, {"metadata": {"name": name}})
        ready = {"type": "Ready", "status": "True", "lastTransitionTime": kubelets.now()}
        await api.patch(f"{NODES}/{name}/status", {"status": {"conditions": [ready]}})
    yield
    for name in NODE_NAMES:
        await api.delete(f"{NODES}/{name}")


@contextlib.asynccontextmanager
async def stage_of(
    plane: ControlPlane,
    api: rest.Api,
    namespace: str,
    folder: Path,
    kubelet: kubelets.Kubelet,
    chance: Random,
) -> AsyncIterator[Chaos]:
    """Run two operators, each behind its own proxy and with a clock that can be set."""
    clock = Clock(folder)
    async with contextlib.AsyncExitStack() as stack:
        proxies = [
            await stack.enter_async_context(FaultProxy(plane.url, plane.tls()).serving()) for _ in range(2)
        ]
        operators = [
            await stack.enter_async_context(
                process.kept(
                    plane,
                    checked=False,
                    watch=namespace,
                    identity=f"operator-{number}",
                    server=proxy.url,
                    resync_s=5,
                    environment=clock.environment,
                )
            )
            for number, proxy in enumerate(proxies)
        ]
        await stack.enter_async_context(ready_nodes(api))
        agent = await stack.enter_async_context(hostile.agent(Random(chance.random())))
        yield Chaos(plane, api, namespace, kubelet, proxies, operators, clock, agent, chance)
