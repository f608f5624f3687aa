"""A rank is killed under strategies that continue from copies in memory; there is no checkpoint to read.

All ranks in one agent, a tiny GPT, steps of 0.1 s. Measured until all ranks have done a step that none had
done before. The copies are made as often as without any flag. The cost of copies is measured in one run,
whose blocks with and without copies take turns.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Sequence
from pathlib import Path

from tests.bench import ranks, recovery_local, report
from tests.bench.goodput_truth import parse
from tests.bench.recovery_times import percentile

KILLS = int(os.environ.get("DTJ_COPIES_KILLS", "5"))  # of each strategy
# ranks, and flags
STRATEGIES: dict[str, tuple[int, tuple[str, ...]]] = {
    "`fsdp`": (2, ("--parallel", "fsdp")),
    "`tp+ddp`": (4, ("--parallel", "tp+ddp", "--mesh", "tp=2")),
    "`pp+ddp`": (4, ("--parallel", "pp+ddp", "--mesh", "pp=2")),
    "`zero1`": (2, ("--parallel", "zero1")),
    "`diloco:10`": (2, ("--sync", "diloco:10")),
}
_NO_SAVE = str(10**9)


def main() -> None:
    """Measure and write the sections of the page."""
    report.write("recovery copies", recovery())
    report.write("cost of copies", cost())


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
    """Time with copies divided by the time of as many steps without, block by block."""
    command = [*ranks.DTJ, "--nproc", 2, "--parallel", "fsdp", ranks.PROGRAMS / "copies.py"]
    found = ranks.numbers(command, timeout_s=170, DTJ_HANG_SECONDS="600")
    ratios = sorted(on / off for on, off in zip(found["on"], found["off"], strict=True))
    quarter = len(ratios) // 4
    row = [
        f"{found['bytes'] / 1e6:.0f}",
        f"{1000 * statistics.median(found['off']):.0f}",
        found["copies"],
        f"{statistics.median(ratios):.3f} ({ratios[quarter]:.3f}-{ratios[-1 - quarter]:.3f})",
    ]
    head = ["MB a copy, each rank", "step without copies, ms", "copies", "time with copies / without"]
    return report.table(head, [row])
