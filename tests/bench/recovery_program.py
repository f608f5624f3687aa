"""A minimal training program inside a pod that logs its progress; recovery is measured with it.

The log has `began`, `joined` (all ranks found each other) and `did step N`. In a checkpoint folder the file
book-<rank>.txt gets a line with the time for each start of the process and each step; it survives the pod.
"""

import argparse
import os
import time
from pathlib import Path

import torch

import dtj

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=10**9)
parser.add_argument("--step-s", type=float, default=0.1, help="seconds of sleep in a step")
given = parser.parse_args()

FOLDER = os.environ.get("DTJ_CHECKPOINT_DIR")
BOOK = Path(FOLDER) / f"book-{os.environ['RANK']}.txt" if FOLDER else None


def tell(what: str, note: str) -> None:
    """Write to the log, and to the book."""
    print(what, flush=True)
    if BOOK:
        BOOK.parent.mkdir(parents=True, exist_ok=True)
        with BOOK.open("a") as file:
            file.write(f"{time.time():.4f} {note}\n")


def main() -> None:
    tell("began", f"start {os.getpid()}")
    run = dtj.init()
    print("joined", flush=True)
    model = run.parallel(torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    inputs = torch.randn(512, 8, generator=torch.Generator().manual_seed(0))
    data = run.data(torch.utils.data.TensorDataset(inputs, inputs.sum(1, keepdim=True)), global_batch=32)
    run.state(model=model, opt=optimizer, data=data)
    for batch in run.steps(given.steps):
        run.backward(lambda mb: torch.nn.functional.mse_loss(model(mb[0]), mb[1]), batch)
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(given.step_s)
        tell(f"did step {run.step + 1}", str(run.step + 1))


if __name__ == "__main__":
    main()
