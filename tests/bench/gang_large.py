"""How long one large job takes to be created and placed, with a gang and without, by a real kube-scheduler.

The machine has other users: pairs in which other processes used much of its time do not count.
"""

from __future__ import annotations

import asyncio
import os
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tests.bench import report
from tests.bench.cpu import Used, used
from tests.bench.gang_rig import SIDES, WITHOUT, Pool, Rig, placed, running
from tests.integration.api import JOBS, PODS

LARGE, ROUNDS = 500, 9
OTHERS, DISTURBED = 0.1, 30  # share of all processors; pairs that do not count before it gives up


def main() -> None:
    """Measure and write the section `gang large` of the page."""
    report.write("gang large", "\n\n".join(asyncio.run(measure())))


async def measure() -> list[str]:
    """Return the tables."""
    async with running() as rig:
        row, cpu = await one_large(rig)
        return [report.table(LARGE_HEAD, [row]), cpu]


LARGE_HEAD = [
    f"1 job of {LARGE}",
    "all pods created: gang, s",
    "pod by pod, s",
    "ratio",
    "all placed: gang, s",
    "pod by pod, s",
    "ratio",
]


@dataclass(frozen=True, kw_only=True)
class Placement:
    """What one large job took, from its post on."""

    created_s: float
    placed_s: float
    used: Used

    @property
    def others(self) -> float:
        """The share of the processors' time that other processes used."""
        return self.used.others_s / self.placed_s / (os.cpu_count() or 1)


async def one_large(rig: Rig) -> tuple[Sequence[object], str]:
    """Place one large job with and without a gang, in turns; return the row, and who used the processors.

    Ratios are medians of pairs. A pair counts only if other processes used less than OTHERS of the time.
    """
    pairs: list[dict[str, Placement]] = []
    disturbed = 0
    async with rig.pool("large", nodes=10, capacity=LARGE // 10) as pool:
        pool.kubelet.starts = False  # what the pods do once they are placed is not measured
        await _place(rig, pool, "first", WITHOUT)  # what every program does only once
        while len(pairs) < ROUNDS and disturbed < DISTURBED:
            pair = {}
            number = len(pairs) + disturbed
            for gang in list(SIDES) if number % 2 else list(reversed(SIDES)):
                pair[gang] = await _place(rig, pool, f"{SIDES[gang].split()[0]}-{number}", gang)
            quiet = all(each.others < OTHERS for each in pair.values())
            print(f"{'counts' if quiet else 'disturbed'}: {pair}", flush=True)
            pairs, disturbed = ([*pairs, pair], disturbed) if quiet else (pairs, disturbed + 1)
    if not pairs:
        raise SystemExit(f"all {disturbed} pairs were disturbed by other processes of this machine")
    return _large_row(pairs, disturbed), _used(pairs)


def _large_row(pairs: Sequence[dict[str, Placement]], disturbed: int) -> Sequence[object]:
    cells: list[Any] = [f"{len(pairs)} pairs, {disturbed} more disturbed"]
    for moment in ("created_s", "placed_s"):
        sides = [[getattr(pair[gang], moment) for pair in pairs] for gang in SIDES]
        ratio = report.seconds([a / b for a, b in zip(*sides, strict=True)])
        cells += [*map(report.seconds, sides), ratio]
    return cells


def _used(pairs: Sequence[dict[str, Placement]]) -> str:
    """Return a table of the CPU seconds of each program, medians."""
    programs = sorted({name for pair in pairs for each in pair.values() for name in each.used.own})
    rows = []
    for gang, name in SIDES.items():
        used = [pair[gang].used for pair in pairs]
        spent = [statistics.median(each.own.get(program, 0.0) for each in used) for program in programs]
        others = statistics.median(each.others_s for each in used)
        rows.append([name, *(f"{seconds:.2f}" for seconds in (*spent, others))])
    return report.table(["CPU, s, until all are placed", *programs, "other processes"], rows)


async def _place(rig: Rig, pool: Pool, name: str, gang: str) -> Placement:
    """Post a job, wait until all its pods are placed, and delete it again."""
    version = (await rig.api.get(PODS.format(pool.name), limit="1"))["metadata"]["resourceVersion"]
    watching = asyncio.create_task(placed(rig.api, pool.name, version, LARGE))
    before, began = used(), asyncio.get_running_loop().time()
    await pool.submit(name, replicas=LARGE, gang=gang)
    created_at, placed_at = await watching
    took = Placement(created_s=created_at - began, placed_s=placed_at - began, used=used() - before)
    await rig.api.delete(f"{JOBS.format(pool.name)}/{name}")
    await pool.kubelet.until(lambda pods: not pods, within_s=600)
    return took
