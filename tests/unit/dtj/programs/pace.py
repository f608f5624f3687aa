"""Trains with a forward pass that takes $STEP_S seconds; $FACTORS, one number a rank, make it longer.

With BARE=1 it is a script that knows nothing of dtj.
"""

import os
import time

import torch
from torch.nn.parallel import DistributedDataParallel

import dtj

STEPS = int(os.environ["STEPS"])
STEP_S = float(os.environ["STEP_S"])
FACTORS = [float(word) for word in os.environ["FACTORS"].split()]


def forward(model: torch.nn.Module, x: torch.Tensor, rank: int) -> torch.Tensor:
    time.sleep(STEP_S * FACTORS[rank])
    out: torch.Tensor = model(x).square().mean()
    return out


def main() -> None:
    run = dtj.init()
    model = run.parallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = run.data(torch.utils.data.TensorDataset(torch.ones(24, 4)), global_batch=12)
    run.state(model=model, optimizer=optimizer, data=data)
    for batch in run.steps(STEPS):
        run.backward(lambda mb: forward(model, mb[0], run.rank), batch)
        optimizer.step()
        optimizer.zero_grad()


def bare() -> None:
    torch.distributed.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(STEPS):
        forward(model, torch.ones(2, 4), torch.distributed.get_rank()).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    bare() if "BARE" in os.environ else main()
