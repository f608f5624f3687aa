"""Train on a stream: files that are read in order, too large to be held in memory or counted.

dtj run examples/loops/file_stream.py
dtj run --nproc 2 --workers 1 examples/loops/file_stream.py     # the same losses
"""

from collections.abc import Iterator
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy

import dtj
from dtj.models.gpt import GPT, Shape

LENGTH = 33


class Texts:
    """Pieces of LENGTH bytes. Every rank reads all of it and keeps its part, so the order must be fixed."""

    def __init__(self, folder: Path) -> None:
        self.files = sorted(folder.rglob("*.py"))

    def __iter__(self) -> Iterator[bytes]:
        for path in self.files:
            with path.open("rb") as file:
                while len(piece := file.read(LENGTH)) == LENGTH:
                    yield piece


def decode(pieces: list[bytes]) -> torch.Tensor:
    """Costly work belongs here: it is done for this rank's own samples only."""
    return torch.tensor([list(piece) for piece in pieces])


run = dtj.init()
model = run.parallel(GPT(Shape(vocabulary=256, context=LENGTH - 1, layers=2, heads=2, width=32)))
opt = torch.optim.AdamW(model.parameters(), 3e-3)
data = run.data(Texts(Path(dtj.__file__).parent), global_batch=32, collate=decode, tokens=LENGTH - 1)
run.state(model=model, opt=opt, data=data)

for batch in run.steps(12):  # a stream has no length, so count in steps; it is read again when it ends
    for tokens in batch:
        loss = run.backward(cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()))
    run.log(loss=loss, grad_norm=run.clip(1.0))
    opt.step()
    opt.zero_grad()
run.say(f"done: {run.step} steps, epoch {data.epoch}")
