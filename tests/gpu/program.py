"""Trains a GPT and writes what the tests compare into the JSON file $OUT.

$STEPS   number of steps
$FREEZE  words, separated by blanks; parameters with one of them in their name are not trained
$DIE_AT  the step, from 0, after which the process kills itself, in its first life
"""

import json
import os
import signal
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy

import dtj
from dtj.data.text import VOCABULARY
from dtj.models.gpt import GPT, GPT2_124M, Shape
from dtj.recipes.text import split

TINY = Shape(vocabulary=VOCABULARY, context=64, layers=2, heads=2, width=64)
STEPS = int(os.environ["STEPS"])
FREEZE = os.environ.get("FREEZE", "").split()
DIE_AT = int(os.environ.get("DIE_AT", "-1"))
GLOBAL_BATCH = 16


def main() -> None:
    run = dtj.init(seed=1)
    on_gpu = run.device.type == "cuda"
    shape = GPT2_124M if on_gpu else TINY
    train, held_out = split(context=shape.context, limit=2_000_000)
    plain = GPT(shape)
    for name, parameter in plain.named_parameters():
        parameter.requires_grad_(not any(word in name for word in FREEZE))
    before = {name: p.detach().clone() for name, p in plain.named_parameters() if not p.requires_grad}
    model = run.parallel(plain)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=6e-4, fused=on_gpu or None)
    run.state(model=model, optimizer=optimizer, data=run.data(train, global_batch=GLOBAL_BATCH))

    losses: dict[int, float] = {}
    for batch in run.steps(STEPS):
        loss = run.backward(lambda mb: cross_entropy(model(mb.x).flatten(0, 1), mb.y.flatten()), batch)
        run.clip(1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses[run.step] = float(loss)
        if run.step == DIE_AT and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            os.kill(os.getpid(), signal.SIGKILL)
    trained_with = peak_of(run.device)
    some = [held_out[window] for window in range(min(4 * GLOBAL_BATCH, len(held_out)))]
    score = run.evaluate(
        lambda mb: cross_entropy(model(mb.x).transpose(1, 2), mb.y, reduction="none").mean(1), some
    )
    found = {
        "device": run.device.type,
        "losses": losses,
        "score": score,
        "peak of training": trained_with,
        "peak of evaluation": peak_of(run.device),
        "fused": bool(optimizer.param_groups[0]["fused"]),
        "types": sorted({str(parameter.dtype) for parameter in model.parameters()}),
        "frozen": len(before),
        "unchanged": all(
            torch.equal(p.detach().cpu(), before[name])
            for name, p in run.unwrap(model).named_parameters()
            if name in before
        ),
    }
    Path(os.environ["OUT"]).write_text(json.dumps(found))


def peak_of(device: torch.device) -> int:
    """Bytes of the largest memory in use since the last call; 0 on the CPU."""
    if device.type != "cuda":
        return 0
    found = torch.cuda.max_memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    return found


if __name__ == "__main__":
    main()
