"""A minimal training program inside a pod that logs its progress; recovery is measured with it.

The log has `began`, `joined` (all ranks found each other) and `did step N`. In a checkpoint folder the file
book-<rank>.txt gets a line with the time for each start of the process and each step; it survives the pod.
"""

import argparse
import os
import time
from pathlib import Path

import torch
from torch.utils.data import TensorDataset

import dtj
from dtj.models.gpt import GPT, Shape

SHAPE = Shape(vocabulary=32, context=8, layers=3, heads=4, width=16)

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=10**9)
parser.add_argument("--step-s", type=float, default=0.1, help="seconds of sleep in a step")
parser.add_argument("--gpt", action="store_true", help="a tiny GPT instead of a single layer")
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


def numbers() -> TensorDataset:
    inputs = torch.randn(512, 8, generator=torch.Generator().manual_seed(0))
    return TensorDataset(inputs, inputs.sum(1, keepdim=True))


def tokens() -> TensorDataset:
    found = torch.randint(0, SHAPE.vocabulary, (512, 9), generator=torch.Generator().manual_seed(0))
    return TensorDataset(found[:, :-1], found[:, 1:])


def predict(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def main() -> None:
    tell("began", f"start {os.getpid()}")
    run = dtj.init()
    print("joined", flush=True)
    model = run.parallel(GPT(SHAPE) if given.gpt else torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9 if given.gpt else 0.0)
    samples = tokens() if given.gpt else numbers()
    data = run.data(samples, global_batch=32)
    loss_of = predict if given.gpt else torch.nn.functional.mse_loss
    run.state(model=model, opt=optimizer, data=data)
    for batch in run.steps(given.steps):
        run.backward(lambda mb: loss_of(model(mb[0]), mb[1]), batch)
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(given.step_s)
        tell(f"did step {run.step + 1}", str(run.step + 1))


if __name__ == "__main__":
    main()
