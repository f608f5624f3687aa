"""Trains by counts on a loader without a length. Rank 1 has fewer batches than rank 0, of other sizes.

trace-<rank>  a line for each step: the step, and this rank's samples and weights after it
$KILLED       rank@step: this rank is killed once, in the forward pass after this step
"""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

import dtj
from dtj.parallel.strategy import local_part

OUT = Path(os.environ["OUT"])
PARTS = (range(20), range(22, 25))


class Part(IterableDataset[torch.Tensor]):
    """Sizes of its batches: 1, 2, 3, 1, ..."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        return (torch.full((1 + n % 3, 1), n / 24) for n in PARTS[run.rank])


def loss_of(batch: torch.Tensor) -> tuple[torch.Tensor, int]:
    seen[:] = batch.flatten().tolist()
    if os.environ.get("KILLED") == f"{run.rank}@{run.step}" and not (OUT / "killed").exists():
        (OUT / "killed").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return model(batch).square().mean(), len(batch)


seen: list[float] = []
run = dtj.init()
model = run.parallel(nn.Linear(1, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
data = run.loader(DataLoader(Part(), batch_size=None))
run.state(model=model, optimizer=optimizer, data=data)
with (OUT / f"trace-{run.rank}").open("a") as log:
    for batch in run.steps(12):
        run.backward(loss_of, batch)
        optimizer.step()
        optimizer.zero_grad()
        weights = [local_part(each.detach()).tolist() for each in model.parameters()]
        print(run.step, seen, weights, file=log, flush=True)
