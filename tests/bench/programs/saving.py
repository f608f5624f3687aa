"""Trains with saves by dtj and by hand in turns; rank 0 prints what each of them costs."""

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

# A window of 20 steps ends with a save: by hand, by dtj, by hand, ...
WINDOW, PAIRS = 20, 4
WIDTH = 1024


def main(folder: Path) -> None:
    run = dtj.init(save_every=2 * WINDOW)
    model = run.parallel(nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(10))))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    data = run.data(TensorDataset(torch.randn(2048, WIDTH)), global_batch=64)
    run.state(model=model, optimizer=optimizer, data=data)
    took = []
    began = time.perf_counter()
    for batch in run.steps(2 * WINDOW * (1 + PAIRS) + 1):
        if run.step > 0:
            took.append(time.perf_counter() - began)  # the whole previous step, its save included
        began = time.perf_counter()
        run.backward(lambda mb: model(mb[0]).square().mean(), batch)
        optimizer.step()
        optimizer.zero_grad()
        if (run.step + 1) % (2 * WINDOW) == WINDOW and run.rank == 0:
            save(folder / "state.pt", {"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    if run.rank == 0:
        report(took[2 * WINDOW :])  # the first saves allocate


def save(path: Path, state: object) -> None:
    """The careful way with one file: complete on the disk before it replaces the older one."""
    fresh = path.with_suffix(".new")
    with fresh.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    fresh.rename(path)


def report(took: list[float]) -> None:
    """The second half of a window is not affected by the save before it: it shows the usual step.

    What a save costs in all is in the step that saves and in the window after it, in which it may be
    written.
    """
    windows = [took[start : start + WINDOW] for start in range(0, WINDOW * 2 * PAIRS, WINDOW)]
    usual = statistics.median(s for w in windows for s in w[WINDOW // 2 : -1])
    waits = [1000 * (w[-1] - usual) for w in windows]
    after = [1000 * (sum(w[:-1]) - (WINDOW - 1) * usual) for w in windows[1:]] + [0.0]
    costs = [wait + later for wait, later in zip(waits, after, strict=True)]
    tell(
        mb=3 * 4 * WIDTH * (WIDTH + 1) * 10 / 1e6,
        by_hand={"waits": waits[::2], "costs": costs[::2]},
        dtj={"waits": waits[1::2], "costs": costs[1:-1:2]},
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
