"""From jobs posted to all pods created, and from jobs deleted to all pods gone; in turns with a bare loop."""

from __future__ import annotations

import asyncio
import copy
import itertools
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tests.bench import report, rig
from tests.bench.rest import Rest
from tests.bench.rig import JOBS, PODS, POLICIES, SERVICES, Rig
from tests.bench.usage import usage
from tests.cluster import kwok
from tests.integration.operator.process import Operator

ROUNDS = 3
# No name is used twice: KWOK may still be about to remove an older pod of that name.
_ROUND = itertools.count()
Body = tuple[str, dict[str, Any]]  # path and body of a POST


@dataclass(frozen=True, kw_only=True)
class Load:
    """A number of jobs with a number of pods each."""

    jobs: int
    replicas: int

    @property
    def pods(self) -> int:
        """Number of pods in all."""
        return self.jobs * self.replicas

    def __str__(self) -> str:
        return (
            f"{self.jobs} jobs x {self.replicas} pods" if self.jobs > 1 else f"1 job x {self.replicas} pods"
        )

    def manifests(self, prefix: str = "bench") -> Iterator[Body]:
        """Yield path and body of every job; its pods run on KWOK's nodes until they are deleted."""
        container = {"name": "trainer", "image": "bench", "resources": {"requests": {"cpu": "10m"}}}
        pod = {"containers": [container], **kwok.PLACEMENT}
        for number in range(self.jobs):
            yield (
                JOBS,
                {
                    "apiVersion": "dtj.dev/v1alpha1",
                    "kind": "DistributedTrainingJob",
                    "metadata": {"name": f"{prefix}-{number}"},
                    "spec": {"replicas": self.replicas, "template": {"spec": pod}},
                },
            )


LOADS = (
    Load(jobs=200, replicas=1),
    Load(jobs=60, replicas=8),
    Load(jobs=1, replicas=500),
    Load(jobs=1, replicas=1000),
)


@dataclass(frozen=True, kw_only=True)
class Took:
    """Seconds from the first post to the last pod, and from the first deletion to the last pod gone."""

    created_s: float
    gone_s: float


def main() -> None:
    """Measure and write the section `creation` of the page."""
    rows = asyncio.run(measure())
    head = [
        "load",
        "created: operator, s",
        "bare loop, s",
        "ratio",
        "gone: operator, s",
        "bare loop, s",
        "ratio",
        "operator's CPU, s",
    ]
    report.write("creation", report.table(head, rows))


async def measure() -> list[list[object]]:
    """Return a row for each load; print each when it is known, as a busy machine takes long for all."""
    rows = []
    async with rig.running(synced=True) as bench, bench.operator() as operator:
        for load in LOADS:
            rows.append(await compare(bench, operator, load))
            print(*rows[-1], sep=" | ", file=sys.stderr, flush=True)
    return rows


async def compare(bench: Rig, operator: Operator, load: Load) -> list[object]:
    """Let operator and bare loop take turns over one load."""
    ours: list[Took] = []
    bare: list[Took] = []
    cpu: list[float] = []
    for _ in range(ROUNDS):
        before = await usage(operator)
        took, bodies = await by_operator(bench.rest, load)
        cpu.append((await usage(operator)).cpu_s - before.cpu_s)
        ours.append(took)
        bare.append(await by_loop(bench.rest, load, bodies))
    row: list[object] = [load]
    for moment in ("created_s", "gone_s"):
        mine, theirs = ([getattr(took, moment) for took in side] for side in (ours, bare))
        ratio = statistics.median(a / b for a, b in zip(mine, theirs, strict=True))
        row += [report.seconds(mine), report.seconds(theirs), f"{ratio:.2f}"]
    return [*row, report.seconds(cpu)]


async def by_operator(rest: Rest, load: Load) -> tuple[Took, list[Body]]:
    """Return the operator's times, and its children as bodies that can be posted again."""
    jobs = list(load.manifests(f"mine{next(_ROUND)}"))
    created_s = await created(rest, load, jobs)
    children = [
        (path, strip(each))
        for path in (SERVICES, POLICIES, PODS)
        for each in (await rest.list(path))["items"]
    ]
    gone_s = await gone(rest, JOBS, [body["metadata"]["name"] for _, body in jobs])
    for path in (JOBS, SERVICES, POLICIES):
        await rest.until_empty(path)
    return Took(created_s=created_s, gone_s=gone_s), children


async def by_loop(rest: Rest, load: Load, bodies: list[Body]) -> Took:
    """Return the times of posting the same children, and of deleting the pods one by one."""
    created_s = await created(rest, load, bodies)
    names = {
        path: [body["metadata"]["name"] for where, body in bodies if where == path] for path, _ in bodies
    }
    gone_s = await gone(rest, PODS, names[PODS])
    for path in names.keys() - {PODS}:
        await rest.delete_each(path, names[path])
    return Took(created_s=created_s, gone_s=gone_s)


async def created(rest: Rest, load: Load, bodies: list[Body]) -> float:
    """Post bodies and return the seconds until a watch has shown all the pods of the load."""
    version = (await rest.list(PODS))["metadata"]["resourceVersion"]
    watching = asyncio.create_task(rest.until_seen(PODS, version, "ADDED", load.pods))
    began = time.monotonic()
    await rest.post_all(bodies)
    return await watching - began


async def gone(rest: Rest, path: str, names: list[str]) -> float:
    """Delete objects and return the seconds until a watch has shown that no pod is left."""
    # A pod without a node is deleted immediately; one that runs waits for its kubelet.
    await rest.until_running(PODS)
    pods = await rest.list(PODS)
    version, count = pods["metadata"]["resourceVersion"], len(pods["items"])
    watching = asyncio.create_task(rest.until_seen(PODS, version, "DELETED", count))
    began = time.monotonic()
    await rest.delete_each(path, names)
    return await watching - began


def strip(child: dict[str, Any]) -> dict[str, Any]:
    """Return an object as the operator posted it: without what the API server added, without owners."""
    body = copy.deepcopy(child)
    body.pop("status", None)
    meta = body["metadata"]
    body["metadata"] = {"name": meta["name"].replace("mine", "loop")}
    for key in ("nodeName", "clusterIP", "clusterIPs"):
        if body["spec"].get(key) not in ("None", ["None"]):
            body["spec"].pop(key, None)
    # Remove the labels, or the operator would see the object and reconcile.
    body["metadata"]["labels"] = {
        f"bench/{key.split('/')[-1]}": value for key, value in meta["labels"].items()
    }
    return body
