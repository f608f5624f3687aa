"""Cost of finding the next samples of a rank: with dtj, and with torch's DistributedSampler."""

from __future__ import annotations

import statistics
import time
import tracemalloc
from collections.abc import Callable

import torch
from torch.utils.data import DistributedSampler

from dtj.data.feed_maker import feed
from dtj.data.loader import Loader
from dtj.data.splitter import Splitter
from tests.bench import report

RANKS, BATCH = 8, 512
BATCHES, RUNS = 640, 5
SIZES = (10**5, 10**7, 10**9)
TOO_LARGE = 10**9  # a list of 1e9 Python integers takes 40 GB


class Numbers:
    """A data set that has only a length."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        return index


def main() -> None:
    """Measure and write the section of the page."""
    head = [
        "samples",
        "dtj: a batch, ms",
        "dtj: memory, MB",
        "DistributedSampler: epoch begins, ms",
        "its memory, MB",
    ]
    report.write("sampler", report.table(head, [row(length) for length in SIZES]))


def row(length: int) -> list[object]:
    """Measure both for a data set of this length."""
    ours_s, ours_mb = cost(lambda: ask_feed(length))
    cells = [f"{length:.0e}".replace("e+0", "e"), f"{1000 * ours_s / BATCHES:.3f}", f"{ours_mb:.1f}"]
    if length >= TOO_LARGE:
        return [*cells, "does not fit in 24 GiB", ""]
    theirs_s, theirs_mb = cost(lambda: ask_sampler(length))
    return [*cells, f"{1000 * theirs_s:.0f}", f"{theirs_mb:.1f}"]


def ask_feed(length: int) -> None:
    """The indices of some batches in the middle of an epoch."""
    asked = feed(
        Numbers(length),
        global_batch=BATCH,
        splitter=Splitter(rank=3, size=RANKS),
        loader=Loader(device=torch.device("cpu")),
        shuffle=True,
    )
    asked.position = length // 2
    for _ in range(BATCHES):
        batch = asked.batch()
        assert sum(len(mb.indices) for mb in batch.micro_batches) <= -(-BATCH // RANKS)
        asked.advance()


def ask_sampler(length: int) -> None:
    """The work before the first batch of an epoch."""
    sampler: DistributedSampler[int] = DistributedSampler(Numbers(length), num_replicas=RANKS, rank=3)  # type: ignore[arg-type]
    sampler.set_epoch(1)
    next(iter(sampler))


def cost(act: Callable[[], None]) -> tuple[float, float]:
    """Median seconds, and the peak of additional memory in MB."""
    took = []
    for _ in range(RUNS):
        began = time.perf_counter()
        act()
        took.append(time.perf_counter() - began)
    tracemalloc.start()
    act()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return statistics.median(took), peak / 1e6
