"""Trains slowly; rank 0 appends the number of each step to $OUT after it."""

import os
import time
from pathlib import Path

import torch
from torch.utils.data import TensorDataset

import dtj

STEP_S = 0.05


def main() -> None:
    run = dtj.init(seed=1, save_every=10**9)  # the only checkpoints are those of a stop
    model = run.parallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = run.data(TensorDataset(torch.zeros(64, 4)), global_batch=8)
    run.state(model=model, optimizer=optimizer, data=data)
    for batch in run.steps(10**9):
        run.backward(lambda mb: model(mb[0]).square().mean(), batch)
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(STEP_S)
        if run.rank == 0:
            with Path(os.environ["OUT"]).open("a") as file:
                file.write(f"{run.step}\n")


if __name__ == "__main__":
    main()
