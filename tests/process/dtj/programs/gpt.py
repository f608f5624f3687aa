"""Trains a tiny GPT on numbers that depend only on the sample; flags set how it is distributed over ranks.

$OUT/losses.txt    the loss of every step, written by rank 0
$OUT/score.txt     the share of right predictions at the end, if $EVALUATE is set, written by rank 0
$OUT/step          the current step, written by rank 0
$OUT/ended-<rank>  the step at which a loss that is not finite stopped the rank
$OUT/trace-<rank>  for every step a line: the step, checksums of the loss and of the rank's weights before it
$OUT/memory.txt    "<rank> <elements of parameters> <elements of optimizer state>" on this rank, at the end
"""

import contextlib
import os
import signal
import time
import zlib
from functools import partial
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy

import dtj
from dtj.checkpoint import paths
from dtj.models.gpt import GPT, Shape

OUT = Path(os.environ["OUT"])
STEPS = int(os.environ.get("STEPS", "6"))
STEP_S = float(os.environ.get("STEP_S", "0"))  # the least time that a step takes
BREAK_AT = int(os.environ.get("BREAK_AT", "-1"))  # the loss of this step is NaN on rank $BREAK_RANK
BREAK_RANK = int(os.environ.get("BREAK_RANK", "0"))
WAIT_AT = int(os.environ.get("WAIT_AT", "-1"))  # in this step rank 1 waits for the file $OUT/go
LOSE_AT = int(os.environ.get("LOSE_AT", "-1"))  # after this step the last rank and all checkpoints are lost
UNWRITABLE = int(os.environ.get("UNWRITABLE", "-1"))  # no checkpoint of this step can be written
SAMPLES = int(os.environ.get("SAMPLES", "52"))  # a batch has 16: the last one of an epoch has fewer
SHAPE = Shape(vocabulary=32, context=8, layers=int(os.environ.get("LAYERS", "2")), heads=4, width=16)


def held(value: torch.Tensor) -> int:
    """Number of elements of a tensor that this process holds."""
    local = value.to_local() if hasattr(value, "to_local") else value
    return 0 if local.is_meta else int(local.numel())


def loss_of(run: dtj.Run, model: torch.nn.Module, mb: dtj.Pair) -> torch.Tensor:
    if run.step + 1 == WAIT_AT and run.rank == 1:
        while not (OUT / "go").exists():
            time.sleep(0.005)
    time.sleep(STEP_S)
    loss = cross_entropy(model(mb.x).flatten(0, 1), mb.y.flatten())
    return loss * float("nan") if run.step + 1 == BREAK_AT and run.rank == BREAK_RANK else loss


def lose() -> None:
    """Damage all checkpoints and die; once per job."""
    with contextlib.suppress(FileExistsError):
        (OUT / "lost").touch(exist_ok=False)
        for state in Path(os.environ["DTJ_CHECKPOINT_DIR"]).glob("step-*/state.pt"):
            state.write_bytes(b"damaged")
        os.kill(os.getpid(), signal.SIGKILL)


def checksum(values: list[torch.Tensor]) -> int:
    """Of what this process holds of the values, bit by bit."""
    local = [v.to_local() if hasattr(v, "to_local") else v for v in values]
    return zlib.crc32(b"".join(v.detach().numpy().tobytes() for v in local if not v.is_meta))


def optimizer_of(model: torch.nn.Module) -> torch.optim.Optimizer:
    if "SGD" in os.environ:
        return torch.optim.SGD(model.parameters(), lr=0.1)
    # eps: the gradient of a key's bias is zero except for rounding
    return torch.optim.AdamW(model.parameters(), lr=1e-2, eps=1e-4)


def main() -> None:
    run = dtj.init(seed=3)
    try:
        train(run)
    except dtj.DtjError:
        (OUT / f"ended-{run.rank}").write_text(str(run.step))
        raise


def train(run: dtj.Run) -> None:
    model = run.parallel(GPT(SHAPE))
    optimizer = optimizer_of(model)
    tokens = torch.randint(0, 32, (SAMPLES, 9), generator=torch.Generator().manual_seed(5))
    samples = torch.utils.data.TensorDataset(tokens[:, :-1], tokens[:, 1:])
    data = run.data(samples, global_batch=16, tokens=8)
    run.state(model=model, optimizer=optimizer, data=data)
    losses = []
    for batch in run.steps(STEPS):
        if run.step + 1 == UNWRITABLE and run.rank == 0:  # where the folder of this step should be is a file
            name = paths.pending_name_of(UNWRITABLE, os.environ["DTJ_INCARNATION"])
            Path(os.environ["DTJ_CHECKPOINT_DIR"], name).touch()
        if run.step == LOSE_AT and run.rank == run.size - 1:
            lose()
        before = checksum(list(model.parameters()))
        loss = run.backward(partial(loss_of, run, model), batch)
        if "CLIP" in os.environ:
            run.clip(float(os.environ["CLIP"]))
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss)
        with (OUT / f"trace-{run.rank}").open("a") as file:
            print(run.step, checksum([loss]), before, file=file, flush=True)
        if run.rank == 0:
            (OUT / "step.tmp").write_text(str(run.step + 1))
            (OUT / "step.tmp").replace(
                OUT / "step"
            )  # atomic: a test that reads it now must not find it empty
        run.log(loss=loss)
        if "SCORES" in os.environ:
            run.keep_best(float(os.environ["SCORES"].split(",")[run.step]))
    if "EVALUATE" in os.environ:
        score = run.evaluate(lambda mb: (model(mb.x).argmax(-1) == mb.y).float().mean(1), samples, batch=8)
        if run.rank == 0:
            (OUT / "score.txt").write_text(str(score))
    means = torch.stack(losses or [torch.zeros(())]) / run.size  # none if a resumed run was complete
    if run.size > 1:
        torch.distributed.all_reduce(means)
    if run.rank == 0:
        (OUT / "losses.txt").write_text("\n".join(map(str, means.tolist())))
    state = [v for values in optimizer.state.values() for v in values.values() if isinstance(v, torch.Tensor)]
    with (OUT / "memory.txt").open("a") as file:
        print(run.rank, sum(map(held, model.parameters())), sum(map(held, state)), file=file, flush=True)


if __name__ == "__main__":
    main()
