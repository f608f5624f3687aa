"""The same loads for our operator and Kubeflow's PyTorchJob operator, each compared with the bare loop."""

from __future__ import annotations

import asyncio
import contextlib
import statistics
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.bench import pytorchjob, report, rig
from tests.bench.creation import Body, Load, by_loop, created, strip
from tests.bench.rig import JOBS, NAMESPACE, PODS, SERVICES, Rig
from tests.bench.usage import resident_mib
from tests.cluster import kwok
from tests.integration import controlplane

ROUNDS = 3
LOADS = (Load(jobs=200, replicas=1), Load(jobs=60, replicas=8), Load(jobs=1, replicas=500))
PYTORCHJOBS = f"/apis/kubeflow.org/v1/namespaces/{NAMESPACE}/pytorchjobs"
Json = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class System:
    """An operator under measurement.

    path     where its jobs are posted
    running  whether a job of its kind reports that all its pods run
    start    starts the operator on a rig; yields its process id
    """

    name: str
    user: str
    path: str
    manifests: Callable[[Load, str], Iterator[Body]]
    running: Callable[[Json], bool]
    start: Callable[[Rig], contextlib.AbstractAsyncContextManager[int]]


def main() -> None:
    """Measure and write the section `peers` of the page."""
    rows = [row for system in systems() for row in asyncio.run(measure(system))]
    head = [
        "operator",
        "load",
        "all pods created, s",
        "bare loop, s",
        "ratio",
        "jobs/s",
        "writes a job",
        "memory, MiB",
    ]
    report.write("peers", report.table(head, rows))


def systems() -> tuple[System, ...]:
    """Return our operator, theirs with defaults, and theirs with more workers and a higher client rate."""
    theirs = pytorchjob.NAME

    def peer(name: str, program: Path, *flags: str) -> System:
        @asynccontextmanager
        async def start(bench: Rig) -> AsyncIterator[int]:
            kubectl = replace(bench.plane.kubectl, kubeconfig=bench.plane.kubeconfig("peer"))
            log = bench.plane.folder / "training-operator.log"
            with pytorchjob.operator(kubectl, program, *flags, log=log) as pid:
                yield pid

        return System(
            name=name,
            user="peer",
            path=PYTORCHJOBS,
            manifests=pytorchjobs,
            running=pytorchjob.says_running,
            start=start,
        )

    return (
        System(
            name="ours",
            user=controlplane.OPERATOR_USER,
            path=JOBS,
            manifests=Load.manifests,
            running=lambda job: job.get("status", {}).get("phase") == "Running",
            start=_ours,
        ),
        peer(theirs, pytorchjob.standard()),
        peer(f"{theirs}, tuned", pytorchjob.tuned(), f"--controller-threads={pytorchjob.THREADS}"),
    )


async def measure(system: System) -> list[list[object]]:
    """Return a row for each load."""
    async with rig.running() as bench, system.start(bench) as pid:
        return [await compare(bench, system, pid, load) for load in LOADS]


async def compare(bench: Rig, system: System, pid: int, load: Load) -> list[object]:
    """Let an operator and the bare loop take turns over one load."""
    ours, bare, writes = [], [], []
    for number in range(ROUNDS):
        asked = bench.requests(system.user)
        jobs = list(system.manifests(load, f"mine{load.jobs}x{load.replicas}-{number}"))
        ours.append(await created(bench.rest, load, jobs))
        await _until_running(bench, system, load)
        writes.append(rig.writes(asked.since()) / load.jobs)
        memory = resident_mib(pid)
        children = [
            (path, strip(each))
            for path in (SERVICES, PODS)
            for each in (await bench.rest.list(path))["items"]
        ]
        await bench.rest.delete_all(system.path)
        await bench.rest.delete_all(PODS)
        for path in (SERVICES, system.path):
            await bench.rest.delete_each(
                path, [each["metadata"]["name"] for each in (await bench.rest.list(path))["items"]]
            )
        for path in (system.path, PODS, SERVICES):
            await bench.rest.until_empty(path)
        bare.append((await by_loop(bench.rest, load, children)).created_s)
    ratio = statistics.median(mine / theirs for mine, theirs in zip(ours, bare, strict=True))
    return [
        system.name,
        load,
        report.seconds(ours),
        report.seconds(bare),
        f"{ratio:.2f}",
        f"{load.jobs / statistics.median(ours):.1f}",
        f"{statistics.median(writes):.1f}",
        f"{memory:.0f}",
    ]


async def _until_running(bench: Rig, system: System, load: Load) -> None:
    listed = await bench.rest.list(system.path)
    done = {job["metadata"]["name"] for job in listed["items"] if system.running(job)}
    async with aclosing(bench.rest.watch(system.path, listed["metadata"]["resourceVersion"])) as events:
        while len(done) < load.jobs:
            _, job = await anext(events)
            if system.running(job):
                done.add(job["metadata"]["name"])


@asynccontextmanager
async def _ours(bench: Rig) -> AsyncIterator[int]:
    async with bench.operator() as operator:
        yield operator.process.pid


def pytorchjobs(load: Load, prefix: str) -> Iterator[Body]:
    """Yield path and body of PyTorchJobs with the same number of pods."""
    container = {"name": "pytorch", "image": "bench", "resources": {"requests": {"cpu": "10m"}}}
    template = {"spec": {"containers": [container], **kwok.PLACEMENT}}
    for number in range(load.jobs):
        yield PYTORCHJOBS, pytorchjob.manifest(f"{prefix}-{number}", load.replicas, template)
