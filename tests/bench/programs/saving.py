"""Trains with periodic saves; rank 0 prints what the saves cost."""

import os
import statistics
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import TensorDataset

import dtj
from tests.bench.ranks import tell

STEPS, EVERY, FIRST = 120, 20, 20
WIDTH = 1024


def main(how: str, folder: Path) -> None:
    by_hand = how == "by hand"
    run = dtj.init(save_every=10**6 if by_hand else EVERY)
    model = run.parallel(nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(10))))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    data = run.data(TensorDataset(torch.randn(2048, WIDTH)), global_batch=64)
    if not by_hand:
        run.state(model=model, optimizer=optimizer, data=data)
    took = []
    began = time.perf_counter()
    for batch in run.steps(STEPS):
        if run.step > 0:
            took.append(time.perf_counter() - began)  # the whole previous step, its save included
        began = time.perf_counter()
        run.backward(lambda mb: model(mb[0]).square().mean(), batch)
        optimizer.step()
        optimizer.zero_grad()
        if by_hand and (run.step + 1) % EVERY == 0 and run.rank == 0:
            save(folder / "state.pt", {"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    if run.rank == 0:
        report(took)


def save(path: Path, state: object) -> None:
    """The careful way with one file: complete on the disk before it replaces the older one."""
    fresh = path.with_suffix(".new")
    with fresh.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    fresh.rename(path)


def report(took: list[float]) -> None:
    """The last step of each window saves; the ten steps before the next save are not affected by it."""
    windows = [took[start : start + EVERY] for start in range(FIRST, len(took) - EVERY + 1, EVERY)]
    usual = statistics.median(s for w in windows for s in w[EVERY // 2 : -1])
    parameters = WIDTH * (WIDTH + 1) * 10
    tell(
        mb=3 * 4 * parameters / 1e6,
        waits_ms=[1000 * (w[-1] - usual) for w in windows],
        costs_ms=1000 * (sum(map(sum, windows)) / len(windows) - EVERY * usual),
    )


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
