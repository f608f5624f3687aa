"""Trains a small GPT with the verbs of Run; rank 0 prints bytes per step, the rate, and the score."""

import time
from pathlib import Path

import torch

import dtj
from dtj.recipes import text

FIRST, STEPS = 8, 104  # the difference excludes the start; both are sync points of --sync ...:8


def sent() -> int:
    """Bytes sent over the loopback of this network namespace."""
    line = next(li for li in Path("/proc/net/dev").read_text().splitlines() if li.strip().startswith("lo:"))
    return int(line.split()[9])


def main() -> None:
    recipe = text.recipe(kilobytes=120, context=64, layers=2, width=64)
    run = dtj.init(seed=recipe.seed)
    model = run.parallel(recipe.model())
    optimizer = recipe.optimizer(model.parameters())
    assert recipe.schedule
    schedule = recipe.schedule(optimizer, STEPS)
    run.data(recipe.data, global_batch=recipe.global_batch)
    counts, times = [], []
    for batch in run.steps(STEPS):
        if run.step in {FIRST, STEPS - 8}:
            torch.distributed.barrier()
            counts.append(sent())
            times.append(time.perf_counter())
            torch.distributed.barrier()
        run.log(loss=run.backward(lambda mb: recipe.loss(model, mb), batch))
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
    assert recipe.score
    score = run.evaluate(lambda mb: recipe.score(model, mb), recipe.held_out)  # type: ignore[misc]
    if run.rank == 0:
        steps = STEPS - 8 - FIRST
        a_step, a_second = (counts[1] - counts[0]) / steps, steps / (times[1] - times[0])
        run.say(f"result {a_step:.0f} {a_second:.1f} {score:.3f}")


if __name__ == "__main__":
    main()
