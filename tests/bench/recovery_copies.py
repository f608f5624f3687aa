"""A rank is killed under strategies that continue from copies in memory; there is no checkpoint to read.

All ranks in one agent, a tiny GPT, steps of 0.1 s. Measured until all ranks have done a step that none had
done before. The copies are made as often as without any flag. The cost of copies is measured with a larger
GPT, in one run of two pods, whose blocks with and without copies take turns.
"""

from __future__ import annotations

import concurrent.futures
import os
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.bench import ranks, recovery_local, report
from tests.bench.goodput_truth import parse
from tests.bench.recovery_times import percentile
from tests.support.ports import free_port

KILLS = int(os.environ.get("DTJ_COPIES_KILLS", "5"))  # of each strategy
# ranks, and flags
_ALL: dict[str, tuple[int, tuple[str, ...]]] = {
    "`fsdp`": (2, ("--parallel", "fsdp")),
    "`hsdp`": (4, ("--parallel", "hsdp", "--mesh", "fsdp=2")),
    "`tp+ddp`": (4, ("--parallel", "tp+ddp", "--mesh", "tp=2")),
    "`pp+ddp`": (4, ("--parallel", "pp+ddp", "--mesh", "pp=2")),
    "`zero1`": (2, ("--parallel", "zero1")),
    "`diloco:10`": (2, ("--sync", "diloco:10")),
}
# DTJ_COPIES_OF=fsdp,zero1 selects some
_SELECTED = os.environ.get("DTJ_COPIES_OF", "").split(",")
STRATEGIES = {name: how for name, how in _ALL.items() if _SELECTED == [""] or name.strip("`") in _SELECTED}
_NO_SAVE = str(10**9)


def main() -> None:
    """Measure and write the sections of the page; DTJ_COPIES_PART=recovery or cost selects one."""
    for part, (section, measure) in _PARTS.items():
        if os.environ.get("DTJ_COPIES_PART", part) == part:
            report.write(section, measure())


def recovery() -> str:
    """A table of the time to a new step, by strategy."""
    rows = []
    for name, (size, flags) in STRATEGIES.items():
        seconds, lost = once(size, flags)
        print(name, seconds, lost, flush=True)
        times = (f"{percentile(seconds, share):.2f}" for share in (0.5, 1.0))
        rows.append([name, size, len(seconds), *times, max(lost)])
    head = ["strategy", "ranks", "kills", "p50, s", "longest, s", "most steps that were done again"]
    return report.table(head, rows)


def once(size: int, flags: Sequence[str]) -> tuple[list[float], list[int]]:
    """For each kill: seconds until a new step, and the number of steps that were lost."""
    seconds, lost = [], []
    words = (*recovery_local.RUN, "--nproc", str(size), *flags)
    arguments = ("--step-s=0.1", "--gpt")
    with recovery_local.running(words, {"DTJ_SAVE_EVERY": _NO_SAVE}, arguments) as folder:
        for number in range(KILLS):
            taken = recovery_local.kill(folder, number % size, ranks=size, new_step=True)
            if taken is None:
                raise RuntimeError((folder / "log").read_text()[-2000:])
            seconds.append(taken)
            lost.append(steps_lost(folder))
        resumed = (folder / "log").read_text().count("resuming from memory")
        if resumed != KILLS:
            raise RuntimeError(f"{resumed} of {KILLS} times from memory")
    return seconds, lost


def steps_lost(folder: Path) -> int:
    """Steps of rank 0 before its last start that it did again."""
    steps = [line.step for line in parse(recovery_local.book(folder, 0))]
    start = len(steps) - 1 - steps[::-1].index(None)
    before, after = steps[start - 1], steps[start + 1]
    assert before is not None
    assert after is not None
    return before - after + 1


def cost() -> str:
    """What copies cost in time and memory, and their own part of it; two pods keep copies of each other."""
    rows, own = [], []
    for name, (size, flags) in STRATEGIES.items():
        found = paired(size, flags)
        print(name, found, flush=True)
        ratios = sorted(on / off for on, off in zip(found["on"], found["off"], strict=True))
        rows.append(
            [
                name,
                size,
                f"{max(found['lengths']) / 1e6:.0f}",
                f"{1000 * statistics.median(found['off']):.0f}",
                f"{statistics.median(found['between']):.1f}",
                f"{statistics.median(ratios):.3f} ({ratios[0]:.3f}-{ratios[-1]:.3f})",
                f"{2 * sum(found['lengths']) / 1e6:.0f}",
                f"{found['held'] / 1e6:.0f}",
            ]
        )
        own.append([name, size, percent(found["stopped"]), percent(found["keeper"])])
    head = ["strategy", "ranks", "MB a copy", "step without copies, ms", "s between copies"]
    head += ["time with copies / without", "memory of a pod as documented, MB", "measured, MB"]
    parts = [
        "strategy",
        "ranks",
        "ranks stop for copies, % of the time",
        "keeper of a pod, % of one processor",
    ]
    return report.table(head, rows) + "\n\n" + report.table(parts, own)


def percent(shares: Sequence[float]) -> str:
    """Median and range in percent."""
    return f"{100 * statistics.median(shares):.1f} ({100 * min(shares):.1f}-{100 * max(shares):.1f})"


def paired(size: int, flags: Sequence[str]) -> dict[str, Any]:
    """What the program tells, in two pods with half of the ranks each."""
    command = [*ranks.DTJ, "--nproc", size // 2, *flags, ranks.PROGRAMS / "copies.py"]
    job = {"NNODES": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": str(free_port()), "DTJ_JOB_UID": "c0b1"}
    with concurrent.futures.ThreadPoolExecutor() as pool:
        pods = [
            pool.submit(ranks.numbers, command, timeout_s=500, NODE_RANK=str(index), **job)
            for index in range(2)
        ]
        return pods[0].result()


_PARTS = {"recovery": ("recovery copies", recovery), "cost": ("cost of copies", cost)}
