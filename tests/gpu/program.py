"""Trains a GPT and writes what the tests compare into the JSON file $OUT.

$SHAPE     "tiny" for a small model; default: GPT-2 with 124 million parameters, on a CPU the small one
$STEPS     number of steps
$FREEZE    words, separated by blanks; parameters with one of them in their name are not trained
$PACE      seconds to sleep after each step, since an agent sees only some steps of a fast program
$READ      "1": read each loss at once, which waits for the GPU
$WATCH     step, from 0, before which torch begins to warn of each line that waits for the GPU, until the last
$FAULT     KIND:RANK:STEP, what the rank does to itself in its first life, after this step, from 0:
           kill    SIGKILL
           sleep   it waits, and does not come back
           spin    an endless loop in Python
           kernel  an endless kernel on the GPU
           assert  a kernel fails an assertion, after which the GPU is lost to the process
           memory  it asks for more of the GPU's memory than there is
"""

import json
import os
import signal
import time
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy

import dtj
from dtj.data.text import VOCABULARY
from dtj.models.gpt import GPT, GPT2_124M, Shape
from dtj.recipes.text import split

TINY = Shape(vocabulary=VOCABULARY, context=64, layers=2, heads=2, width=64)
STEPS = int(os.environ["STEPS"])
PACE = float(os.environ.get("PACE", "0"))
FREEZE = os.environ.get("FREEZE", "").split()
READS = os.environ.get("READ") == "1"
WATCH = int(os.environ.get("WATCH", "-1"))
FAULT, FAULT_RANK, FAULT_STEP = os.environ.get("FAULT", "none:0:-1").split(":")
GLOBAL_BATCH = 16


def main() -> None:
    run = dtj.init(seed=1)
    on_gpu = run.device.type == "cuda"
    shape = GPT2_124M if on_gpu and os.environ.get("SHAPE") != "tiny" else TINY
    train, held_out = split(context=shape.context, limit=2_000_000)
    plain = GPT(shape)
    for name, parameter in plain.named_parameters():
        parameter.requires_grad_(not any(word in name for word in FREEZE))
    before = {name: p.detach().clone() for name, p in plain.named_parameters() if not p.requires_grad}
    model = run.parallel(plain)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=6e-4, fused=on_gpu or None)
    run.state(model=model, optimizer=optimizer, data=run.data(train, global_batch=GLOBAL_BATCH))

    losses: dict[int, float | torch.Tensor] = {}
    for batch in run.steps(STEPS):
        if on_gpu:
            warn_of_waits(WATCH <= run.step < STEPS - 1 and WATCH >= 0)
        loss = run.backward(lambda mb: cross_entropy(model(mb.x).flatten(0, 1), mb.y.flatten()), batch)
        run.clip(1.0)
        optimizer.step()
        optimizer.zero_grad()
        run.log(loss=loss)
        mean = run.reduce(loss)
        losses[run.step] = float(mean) if READS else mean
        time.sleep(PACE)
        if run.step == int(FAULT_STEP) and run.rank == int(FAULT_RANK) and is_first_life():
            fail(run.device)
    trained_with = peak_of(run.device)
    some = [held_out[window] for window in range(min(4 * GLOBAL_BATCH, len(held_out)))]
    score = run.evaluate(
        lambda mb: cross_entropy(model(mb.x).transpose(1, 2), mb.y, reduction="none").mean(1), some
    )
    found = {
        "device": run.device.type,
        "losses": {step: float(loss) for step, loss in losses.items()},
        "score": score,
        "peak of training": trained_with,
        "peak of evaluation": peak_of(run.device),
        "fused": bool(optimizer.param_groups[0].get("fused")),
        "types": sorted({str(parameter.dtype) for parameter in model.parameters()}),
        "frozen": len(before),
        "unchanged": all(
            torch.equal(p.detach().cpu(), before[name])
            for name, p in run.unwrap(model).named_parameters()
            if name in before
        ),
    }
    if run.rank == 0:
        Path(os.environ["OUT"]).write_text(json.dumps(found))


def warn_of_waits(warn: bool) -> None:
    torch.cuda.set_sync_debug_mode("warn" if warn else "default")


def is_first_life() -> bool:
    return os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"


def fail(device: torch.device) -> None:
    """Do what $FAULT says."""
    match FAULT:
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "sleep":
            time.sleep(10_000)
        case "spin":
            while True:
                pass
        case "kernel":
            torch.cuda._sleep(2**62)  # type: ignore[no-untyped-call]
        case "assert":
            torch.zeros(4, device=device)[torch.full((1,), 9, device=device)] += 1
            torch.cuda.synchronize()
        case "memory":
            torch.empty(2**50, dtype=torch.uint8, device=device)


def peak_of(device: torch.device) -> int:
    """Bytes of the largest memory in use since the last call; 0 on the CPU."""
    if device.type != "cuda":
        return 0
    found = torch.cuda.max_memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    return found


if __name__ == "__main__":
    main()
