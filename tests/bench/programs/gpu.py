"""Trains GPT-2 124M on one GPU by the verbs of Run and prints the seconds of the steps after warm-up.

    gpu.py MODEL

MODEL  "ours": the recipe gpt2; "theirs": model.py of the nanoGPT in the present folder
"""

import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import dtj
from dtj.data.text import Windows
from dtj.recipes import text
from tests.bench.gpu import ACCUMULATE, MICRO_BATCH, SHAPE, STEPS, WARM_UP
from tests.bench.ranks import tell

LossOf = Callable[[nn.Module, Any], Any]
SMALL = {"context": SHAPE.context, "layers": SHAPE.layers, "width": SHAPE.width}


def main(name: str) -> None:
    run = dtj.init(seed=1337, precision="bf16", tf32=True, micro_batch=MICRO_BATCH, compile=True)
    model, loss_of, windows = (ours if name == "ours" else theirs)()
    model = run.parallel(model)
    optimizer = torch.optim.AdamW(
        [
            {"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": 0.1},
            {"params": [p for p in model.parameters() if p.dim() <= 1], "weight_decay": 0.0},
        ],
        lr=6e-4,
        betas=(0.9, 0.95),
        fused=run.device.type == "cuda" or None,
    )
    data = run.data(windows, global_batch=MICRO_BATCH * ACCUMULATE, tokens=SHAPE.context)
    run.state(model=model, optimizer=optimizer, data=data)
    began = 0.0
    for number, batch in enumerate(run.steps(WARM_UP + STEPS)):
        if number == WARM_UP:
            began = now(run.device)
        loss = run.backward(lambda mb: loss_of(model, mb), batch)
        run.clip(1.0)
        optimizer.step()
        optimizer.zero_grad()
        run.log(loss=loss)
        if number == WARM_UP + STEPS - 1:
            tell(seconds=now(run.device) - began, loss=float(loss))


def ours() -> tuple[nn.Module, LossOf, Windows]:
    recipe = text.gpt2(kilobytes=8000) if torch.cuda.is_available() else text.recipe(**SMALL)
    return recipe.model(), recipe.loss, recipe.data


def theirs() -> tuple[nn.Module, LossOf, Windows]:
    sys.path.insert(0, "")
    import model as nanogpt  # type: ignore[import-not-found] # a file of the present folder

    shape = {"block_size": SHAPE.context, "vocab_size": SHAPE.vocabulary, "n_layer": SHAPE.layers}
    config = nanogpt.GPTConfig(**shape, n_head=SHAPE.heads, n_embd=SHAPE.width, dropout=0.0, bias=False)
    windows, _ = text.split(context=SHAPE.context, limit=8_000_000)
    return nanogpt.GPT(config), lambda model, mb: model(mb.x, mb.y)[1], windows


def now(device: torch.device) -> float:
    """Seconds, after the work of the device."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


if __name__ == "__main__":
    main(*sys.argv[1:])
