"""Trains a small model and writes what happened into the folder $OUT.

weights.pt       the final weights, written by rank 0
seen-<rank>.txt  one line per step: the step, then the samples of this rank
ready            created once step $READY_AT is done
at-<step>        created once a step of the list $HOLD_AT is done; rank 0 then waits for a file go-<step>
worker-<pid>     created by each worker process, which loads samples for a rank
stuck-<pid>      created by the first process that loads sample $STUCK_AT, which then hangs

$STOPS lets that process stop (SIGSTOP) instead.
$STREAM makes the dataset a stream, which can only be read in order.
$EVALUATE_FIRST evaluates once before training.
$FINISH_AT is the step in which the last rank calls run.finish. It also does so once there is a file finish.
$BREAK_AT is the step in which only rank 0 leaves the loop, which is a mistake.
$STALLED_SAVE_S is how long the first save may take, which then stalls.
$AFTERWARDS_S is how long the program continues after the last step.
$SCORES, with commas, are passed to run.keep_best, one per step.

$FAULTS is a list of rank@step:place:how, separated by blanks. Each happens once per job.
place  end (of the step), forward, evaluate, start (of the program; step is the number of restarts before)
how    raise, gpu, exit, a signal's name, ...: see `fail`
"""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import get_worker_info

import dtj
from dtj.errors import DeviceError
from dtj.parallel.strategy import unwrap
from dtj.telemetry import heartbeat

OUT = Path(os.environ["OUT"])
SAMPLES = int(os.environ.get("SAMPLES", "98"))
STEPS = int(os.environ.get("STEPS", "20"))
READY_AT = int(os.environ.get("READY_AT", "-1"))
STEP_S = float(os.environ.get("STEP_S", "0"))
EVALUATE_S = float(os.environ.get("EVALUATE_S", "0"))
PAUSE_AT = int(os.environ.get("PAUSE_AT", "-1"))
FINISH_AT = int(os.environ.get("FINISH_AT", "-1"))
BREAK_AT = int(os.environ.get("BREAK_AT", "-1"))
HOLD_AT = os.environ.get("HOLD_AT", "").split()
EVALUATE_EVERY = int(os.environ.get("EVALUATE_EVERY", "0"))
STUCK_AT = int(os.environ.get("STUCK_AT", "-1"))
SCORES = os.environ.get("SCORES", "").split(",")
FAIL_AT = int(os.environ.get("FAIL_AT", "-1"))
FAIL_RANK = int(os.environ.get("FAIL_RANK", "0"))


class Numbered(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Sample i knows its number; inputs and targets depend on it alone."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(5)
        self.x = torch.randn(SAMPLES, 12, generator=generator)
        self.y = torch.randn(SAMPLES, 3, generator=generator)

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        if get_worker_info():
            (OUT / f"worker-{os.getpid()}").touch()
        if index == STUCK_AT and not list(OUT.glob("stuck-*")):
            (OUT / f"stuck-{os.getpid()}").touch()
            if "STOPS" in os.environ:
                os.kill(os.getpid(), signal.SIGSTOP)
            time.sleep(600)
        return {"i": torch.tensor(index), "x": self.x[index], "y": self.y[index]}


class InOrder(torch.utils.data.IterableDataset[dict[str, torch.Tensor]]):
    """The same samples as a stream."""

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        samples = Numbered()
        return (samples[i] for i in range(SAMPLES))


class Net(nn.Module):
    """Defined in another order than used, so that DDP rebuilds its buckets after the first step."""

    def __init__(self, *, plain: bool) -> None:
        super().__init__()
        self.last = nn.Linear(40, 3)
        self.first = nn.Linear(12, 40)
        self.between = nn.Identity() if plain else nn.Sequential(nn.BatchNorm1d(40), nn.Dropout(0.2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.last(torch.tanh(self.between(self.first(x))))
        return out


def inject_fault(rank: int, step: int, place: str) -> None:
    """Fail at this point of the program if $FAULTS says so and it has not happened yet."""
    for number, fault in enumerate(os.environ.get("FAULTS", "").split()):
        who, _, rest = fault.partition("@")
        when, where, how = rest.split(":")
        if (int(who), where) == (rank, place) and int(when) == step:
            try:
                (OUT / f"fault-{number}").touch(exist_ok=False)
            except FileExistsError:
                continue
            fail(how)


def fail(how: str) -> None:
    """Fail in the given way."""
    if how == "raise":
        raise ValueError("label 11 is out of range")
    if how == "gpu":
        raise DeviceError("this machine has a GPU, but it cannot be used: CUDA unknown error")
    if how == "exit":
        raise SystemExit(3)
    if how == "sleep":
        time.sleep(600)
    if how == "loop":
        time.sleep(1.5)  # that CPU time is used is first seen 2 s after the last step
    while how == "loop":
        pass
    if how == "vanish":
        os._exit(5)
    if how in {"bad recipe", "bad-recipe"}:
        raise dtj.RecipeError("width is 7, expected an even number", fix="width=8")
    os.kill(os.getpid(), signal.Signals[how])
    time.sleep(60)


class Stalls:
    """A part of the state that cannot be copied within the time that a save may take."""

    is_restored = False

    def state_dict(self) -> dict[str, int]:
        if self.is_restored:
            time.sleep(600)
        self.is_restored = True
        return {}

    def load_state_dict(self, state: dict[str, int]) -> None:
        del state


def main() -> None:
    heartbeat.SAVE_S = float(os.environ.get("STALLED_SAVE_S", heartbeat.SAVE_S))
    restarts = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    inject_fault(int(os.environ.get("RANK", "0")), restarts, "start")
    run = dtj.init(seed=3)
    model = run.parallel(Net(plain="PLAIN" in os.environ))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    data = run.data(InOrder() if "STREAM" in os.environ else Numbered(), global_batch=12)
    stalls = {"stalls": Stalls()} if "STALLED_SAVE_S" in os.environ and run.rank == 0 else {}
    run.state(model=model, optimizer=optimizer, data=data, **stalls)
    seen: list[int] = []

    def loss_of(mb: dict[str, torch.Tensor]) -> torch.Tensor:
        seen.extend(mb["i"].tolist())
        inject_fault(run.rank, run.step, "forward")
        loss: torch.Tensor = (model(mb["x"]) - mb["y"]).square().mean()
        return loss

    def score(mb: dict[str, torch.Tensor]) -> torch.Tensor:
        inject_fault(run.rank, run.step, "evaluate")
        time.sleep(EVALUATE_S)
        errors: torch.Tensor = (model(mb["x"]) - mb["y"]).square().mean(1)
        return errors

    if "EVALUATE_FIRST" in os.environ:
        run.evaluate(score, Numbered())
    with (OUT / f"seen-{run.rank}.txt").open("a") as log:
        for batch in run.steps(STEPS):
            mine = [i for mb in batch.micro_batches if mb.weight for i in mb.indices.tolist()]
            seen.clear()
            loss = run.backward(loss_of, batch)
            assert not seen or set(mine) <= set(seen), (
                mine,
                seen,
            )  # empty if the other ranks have done this step already
            optimizer.step()
            optimizer.zero_grad()
            run.log(loss=loss)
            time.sleep(STEP_S)
            print(run.step, *mine, file=log, flush=True)
            if run.rank == FAIL_RANK and run.step == FAIL_AT:
                fail(os.environ.get("FAIL_HOW", "raise"))
            if run.rank == run.size - 1 and (run.step == FINISH_AT or (OUT / "finish").exists()):
                run.finish()
            inject_fault(run.rank, run.step, "end")
            if run.rank == 0 and run.step == BREAK_AT:
                break
            if EVALUATE_EVERY and (run.step + 1) % EVALUATE_EVERY == 0:
                mean = run.evaluate(score, Numbered(), batch=1 if EVALUATE_S else 256)
                print(f"evaluated {mean:.12f} at {run.step}", flush=True)
            if SCORES != [""]:
                run.keep_best(float(SCORES[run.step]))
            if run.step == PAUSE_AT and run.rank == 0:
                with run.pause("a test", at_most_s=float(os.environ.get("PAUSE_AT_MOST_S", "3600"))):
                    time.sleep(float(os.environ["PAUSE_S"]))
            if READY_AT >= 0:
                time.sleep(0.002)  # a step of the usual length, so that the test is not late
                if run.step == READY_AT and run.rank == 0:
                    (OUT / "ready").touch()
            if run.rank == 0 and str(run.step) in HOLD_AT:
                (OUT / f"at-{run.step}").touch()
                while not (OUT / f"go-{run.step}").exists():
                    time.sleep(0.005)
    time.sleep(float(os.environ.get("AFTERWARDS_S", "0")))
    if run.rank == 0:
        torch.save(
            {"model": unwrap(model).state_dict(), "optimizer": optimizer.state_dict()}, OUT / "weights.pt"
        )


if __name__ == "__main__":
    main()
