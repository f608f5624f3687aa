"""Jobs that start whole, beside jobs whose pods are placed one by one, by a real kube-scheduler.

Two jobs of which one fits; a queue of jobs that is drained.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from tests.bench import gang_pairs, report
from tests.bench.gang_rig import SIDES, Pool, Rig, running

PAIRS = 100
JOBS_IN_QUEUE, OF, FIT = 50, 16, 10
RUN_S = 2.0  # how long a job of the queue runs
STUCK_S = 60.0  # without a job that ends


def main() -> None:
    """Measure and write the section `gangs` of the page."""
    report.write("gangs", "\n\n".join(asyncio.run(measure())))


async def measure() -> list[str]:
    """Return the tables."""
    async with running() as rig:
        queue = report.table(QUEUE_HEAD, [await drain(rig, gang) for gang in SIDES])
        seen = {gang: await gang_pairs.measure(rig, gang, PAIRS) for gang in SIDES}
        rows = [gang_pairs.row(SIDES[gang], PAIRS, found) for gang, found in seen.items()]
        return [report.table(gang_pairs.HEAD, rows), queue]


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
