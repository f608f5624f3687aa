"""Trains a tiny GPT on numbers that depend on the sample alone; the flags say how ranks share it.

$OUT/losses.txt    the loss of every step, by rank 0
$OUT/memory.txt    "<rank> <elements of parameters> <elements of optimizer state>" on this rank, at the end
"""

import os
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy

import dtj
from dtj.models.gpt import GPT, Shape

OUT = Path(os.environ["OUT"])
STEPS = int(os.environ.get("STEPS", "6"))
SHAPE = Shape(vocabulary=32, context=8, layers=3, heads=4, width=16)


def held(value: torch.Tensor) -> int:
    """Elements in this process."""
    local = value.to_local() if hasattr(value, "to_local") else value
    return 0 if local.is_meta else int(local.numel())


def main() -> None:
    run = dtj.init(seed=3)
    model = run.parallel(GPT(SHAPE))
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=1e-2, eps=1e-4
    )  # eps: the gradient of a key's bias is zero but for rounding
    tokens = torch.randint(0, 32, (52, 9), generator=torch.Generator().manual_seed(5))
    data = run.data(torch.utils.data.TensorDataset(tokens[:, :-1], tokens[:, 1:]), global_batch=16)
    run.state(model=model, optimizer=optimizer, data=data)
    losses = []
    for batch in run.steps(STEPS):
        loss = run.backward(
            lambda mb: cross_entropy(model(mb.x).flatten(0, 1).float(), mb.y.flatten()), batch
        )
        if "CLIP" in os.environ:
            run.clip(float(os.environ["CLIP"]))
        optimizer.step()
        optimizer.zero_grad()
        mean = loss.clone()
        if run.size > 1:
            torch.distributed.all_reduce(mean)
        losses.append(mean.item() / run.size)
        run.log(loss=loss)
    score = run.evaluate(lambda mb: (model(mb.x).argmax(-1) == mb.y).float().mean(1), data.dataset, batch=7)
    if run.rank == 0:
        (OUT / "losses.txt").write_text("\n".join(map(str, [*losses, score])))
    state = [v for values in optimizer.state.values() for v in values.values() if isinstance(v, torch.Tensor)]
    with (OUT / "memory.txt").open("a") as file:
        print(run.rank, sum(map(held, model.parameters())), sum(map(held, state)), file=file, flush=True)


if __name__ == "__main__":
    main()
