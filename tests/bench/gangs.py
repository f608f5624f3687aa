"""Jobs that start whole, beside jobs whose pods are placed one by one, by a real kube-scheduler.

Two jobs of which one fits; a queue of jobs that is drained; one large job.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Sequence
from typing import Any

from tests.bench import gang_pairs, report
from tests.bench.gang_rig import WITH, WITHOUT, Pool, Rig, placed, running
from tests.integration.api import JOBS, PODS

PAIRS = 100
JOBS_IN_QUEUE, OF, FIT = 50, 16, 10
RUN_S = 2.0  # how long a job of the queue runs
STUCK_S = 60.0  # without a job that ends
LARGE, ROUNDS = 500, 5
SIDES = {WITH: "gangs", WITHOUT: "pod by pod"}


def main() -> None:
    """Measure and write the section `gangs` of the page."""
    report.write("gangs", "\n\n".join(asyncio.run(measure())))


async def measure() -> list[str]:
    """Return the tables."""
    async with running() as rig:
        large = report.table(LARGE_HEAD, [await one_large(rig)])
        queue = report.table(QUEUE_HEAD, [await drain(rig, gang) for gang in SIDES])
        seen = {gang: await gang_pairs.measure(rig, gang, PAIRS) for gang in SIDES}
        rows = [gang_pairs.row(SIDES[gang], PAIRS, found) for gang, found in seen.items()]
        return [report.table(gang_pairs.HEAD, rows), queue, large]


QUEUE_HEAD = [
    f"{JOBS_IN_QUEUE} jobs of {OF}, capacity for {FIT}, {RUN_S:.0f} s each",
    "jobs ended",
    "all ended after, s",
]


async def drain(rig: Rig, gang: str) -> Sequence[object]:
    """Submit all jobs at once, let each end RUN_S after all its pods run, and wait until all have ended."""
    async with rig.pool(f"queue-{gang.lower()}", nodes=FIT, capacity=OF) as pool:
        clock = asyncio.get_running_loop().time
        names = [f"job-{number}" for number in range(JOBS_IN_QUEUE)]
        began = clock()
        await asyncio.gather(*(pool.submit(name, replicas=OF, gang=gang) for name in names))
        waiting, ended_at = set(names), [began]
        async with asyncio.TaskGroup() as ending:
            while waiting and clock() - ended_at[-1] < STUCK_S:
                whole = {name for name in waiting if pool.state(name, OF).whole}
                waiting -= whole
                for name in whole:
                    ending.create_task(_end(pool, name, ended_at))
                await asyncio.sleep(0.05)  # between two looks
    ended = len(ended_at) - 1
    took = f"{ended_at[-1] - began:.1f}" if ended == len(names) else f"never: none ended for {STUCK_S:.0f} s"
    return [SIDES[gang], f"{ended} of {len(names)}", took]


async def _end(pool: Pool, name: str, ended_at: list[float]) -> None:
    await asyncio.sleep(RUN_S)
    await pool.finish(name, OF)
    ended_at.append(asyncio.get_running_loop().time())


LARGE_HEAD = [
    f"1 job of {LARGE}",
    "all pods created: gang, s",
    "pod by pod, s",
    "ratio",
    "all placed: gang, s",
    "pod by pod, s",
    "ratio",
]


async def one_large(rig: Rig) -> Sequence[object]:
    """Place one large job, with and without a gang in turns; ratios are medians of the pairs."""
    took: dict[str, list[tuple[float, float]]] = {gang: [] for gang in SIDES}
    async with rig.pool("large", nodes=10, capacity=LARGE // 10) as pool:
        for number in range(ROUNDS):
            for gang in SIDES:
                took[gang].append(await _place(rig, pool, f"{SIDES[gang].split()[0]}-{number}", gang))
    cells: list[Any] = ["5 rounds"]
    for moment in (0, 1):
        sides = [[times[moment] for times in took[gang]] for gang in SIDES]
        ratio = statistics.median(a / b for a, b in zip(*sides, strict=True))
        cells += [*map(report.seconds, sides), f"{ratio:.2f}"]
    return cells


async def _place(rig: Rig, pool: Pool, name: str, gang: str) -> tuple[float, float]:
    """Return the seconds from the post until all pods are created, and until all are placed."""
    version = (await rig.api.get(PODS.format(pool.name), limit="1"))["metadata"]["resourceVersion"]
    watching = asyncio.create_task(placed(rig.api, pool.name, version, LARGE))
    began = asyncio.get_running_loop().time()
    await pool.submit(name, replicas=LARGE, gang=gang)
    created_at, placed_at = await watching
    await rig.api.delete(f"{JOBS.format(pool.name)}/{name}")
    await pool.kubelet.until(lambda pods: not pods)
    return created_at - began, placed_at - began
