"""Jobs applied -> all their pods created, against a bare loop that posts the very same pods, in turns."""

from __future__ import annotations

import asyncio
import copy
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tests.bench import report, rig
from tests.bench.rest import Rest
from tests.bench.rig import JOBS, PODS, SERVICES, Rig
from tests.bench.usage import usage
from tests.cluster import kwok
from tests.integration.operator.process import Operator

ROUNDS = 5


@dataclass(frozen=True, kw_only=True)
class Load:
    """So many jobs of so many pods."""

    jobs: int
    replicas: int

    @property
    def pods(self) -> int:
        """How many pods that makes."""
        return self.jobs * self.replicas

    def __str__(self) -> str:
        return (
            f"{self.jobs} jobs x {self.replicas} pods" if self.jobs > 1 else f"1 job x {self.replicas} pods"
        )

    def manifests(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield path and body of every job; its pods go to KWOK's nodes and stay there."""
        container = {"name": "trainer", "image": "bench", "resources": {"requests": {"cpu": "10m"}}}
        pod = {"containers": [container], **kwok.PLACEMENT}
        for number in range(self.jobs):
            yield (
                JOBS,
                {
                    "apiVersion": "dtj.dev/v1alpha1",
                    "kind": "DistributedTrainingJob",
                    "metadata": {"name": f"bench-{number}"},
                    "spec": {"replicas": self.replicas, "template": {"spec": pod}},
                },
            )


LOADS = (Load(jobs=200, replicas=1), Load(jobs=60, replicas=8))


def main() -> None:
    """Measure and write the section `creation` of the page."""
    rows = asyncio.run(measure())
    head = [
        "load",
        "rounds",
        "operator, s",
        "bare loop, s",
        "ratio, median of the pairs",
        "operator's CPU, s a round",
    ]
    report.write("creation", report.table(head, rows))


async def measure() -> list[list[object]]:
    """Return a row for each load."""
    async with rig.running() as bench, bench.operator() as operator:
        return [await compare(bench, operator, load) for load in LOADS]


async def compare(bench: Rig, operator: Operator, load: Load) -> list[object]:
    """Let operator and bare loop take turns over one load."""
    ours, bare, cpu = [], [], []
    for _ in range(ROUNDS):
        before = await usage(operator)
        took_s, bodies = await by_operator(bench.rest, load)
        cpu.append((await usage(operator)).cpu_s - before.cpu_s)
        ours.append(took_s)
        bare.append(await by_loop(bench.rest, load, bodies))
    ratio = statistics.median(mine / theirs for mine, theirs in zip(ours, bare, strict=True))
    return [load, ROUNDS, report.seconds(ours), report.seconds(bare), f"{ratio:.2f}", report.seconds(cpu)]


async def by_operator(rest: Rest, load: Load) -> tuple[float, list[tuple[str, dict[str, Any]]]]:
    """Return the seconds that the operator took, and its children as bodies that can be posted again."""
    took_s = await timed(rest, load, list(load.manifests()))
    children = [(SERVICES, strip(each)) for each in (await rest.list(SERVICES))["items"]]
    children += [(PODS, strip(each)) for each in (await rest.list(PODS))["items"]]
    await rest.delete_all(JOBS)
    await rest.until_empty(JOBS)
    await rest.until_empty(PODS)
    await rest.until_empty(SERVICES)
    return took_s, children


async def by_loop(rest: Rest, load: Load, bodies: list[tuple[str, dict[str, Any]]]) -> float:
    """Return the seconds that posting the same children takes."""
    took_s = await timed(rest, load, bodies)
    await rest.delete_all(PODS)
    await rest.delete_each(SERVICES, [body["metadata"]["name"] for path, body in bodies if path == SERVICES])
    await rest.until_empty(PODS)
    return took_s


async def timed(rest: Rest, load: Load, bodies: list[tuple[str, dict[str, Any]]]) -> float:
    """Post bodies and return the seconds until a watch has shown all the pods of the load."""
    version = (await rest.list(PODS))["metadata"]["resourceVersion"]
    watching = asyncio.create_task(rest.until_seen(PODS, version, "ADDED", load.pods))
    began = time.monotonic()
    await rest.post_all(bodies)
    return await watching - began


def strip(child: dict[str, Any]) -> dict[str, Any]:
    """Return what the operator posted: without what the API server added, and owned by nobody."""
    body = copy.deepcopy(child)
    body.pop("status", None)
    meta = body["metadata"]
    body["metadata"] = {key: meta[key] for key in ("name", "labels") if key in meta}
    for key in ("nodeName", "clusterIP", "clusterIPs"):
        if body["spec"].get(key) not in ("None", ["None"]):
            body["spec"].pop(key, None)
    # Without its labels the operator does not see it; a single one of ours would cost it a look.
    body["metadata"]["labels"] = {
        f"bench/{key.split('/')[-1]}": value for key, value in meta["labels"].items()
    }
    return body
