"""Trains with a forward pass that takes $STEP_S seconds; $FACTORS, one number a rank, make it longer.

Each rank keeps a book, $OUT/book-<rank>: when it began and when each step was done. $FAULTS is a list of
rank@step, each of which kills that rank once. In the last step all wait for the file $OUT/go.

With BARE=1 it is a script that knows nothing of dtj.
"""

import os
import signal
import time
from pathlib import Path

import torch
from torch.nn.parallel import DistributedDataParallel

import dtj

STEPS = int(os.environ["STEPS"])
STEP_S = float(os.environ["STEP_S"])
BEGAN = time.time()
OUT = Path(os.environ.get("OUT", "."))
FAULTS = os.environ.get("FAULTS", "").split()
FACTORS = [float(word) for word in os.environ["FACTORS"].split()]


def forward(model: torch.nn.Module, x: torch.Tensor, rank: int) -> torch.Tensor:
    time.sleep(STEP_S * FACTORS[rank])
    out: torch.Tensor = model(x).square().mean()
    return out


def fail_if_told(rank: int, step: int) -> None:
    fault = OUT / f"fault-{rank}-{step}"
    if f"{rank}@{step}" in FAULTS and not fault.exists():
        fault.touch()
        os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    run = dtj.init()
    model = run.parallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = run.data(torch.utils.data.TensorDataset(torch.ones(24, 4)), global_batch=12)
    run.state(model=model, optimizer=optimizer, data=data)
    with (OUT / f"book-{run.rank}").open("a", buffering=1) as book:
        book.write(f"{BEGAN} start\n")
        for batch in run.steps(STEPS):
            run.backward(lambda mb: forward(model, mb[0], run.rank), batch)
            optimizer.step()
            optimizer.zero_grad()
            fail_if_told(run.rank, run.step)
            book.write(f"{time.time()} {run.step + 1}\n")
            while run.step == STEPS - 1 and not (OUT / "go").exists():
                time.sleep(0.005)


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
