"""A healthy training run that is slow in all ways of `control_plan`; it sleeps instead of computing.

$OUT/events-<rank>.jsonl gets an object for every start of the process, every event, and the end of the plan.
"""

import gc
import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

import dtj
from tests.bench.control_plan import Event, plan

STEP_S = float(os.environ["STEP_S"])
RANK = int(os.environ["RANK"])
PLAN = plan(
    int(os.environ["SEED"]),
    seconds=float(os.environ["SECONDS_OF_PLAN"]),
    step_s=STEP_S,
    ranks=int(os.environ["WORLD_SIZE"]),
)
EVENTS = Path(os.environ["OUT"]) / f"events-{RANK}.jsonl"
_SCORED = 64  # samples of an evaluation, one at a time
_GARBAGE = 1_000_000


def note(kind: str, **fields: Any) -> None:
    """Write one line for the harness."""
    with EVENTS.open("a") as file:
        file.write(json.dumps({"kind": kind, **fields}) + "\n")


class SlowToSave:
    """A large part of the state: copying it for a checkpoint takes long."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def state_dict(self) -> dict[str, int]:
        if self.seconds:
            time.sleep(self.seconds)
            note("checkpoint", seconds=self.seconds)
        return {}

    def load_state_dict(self, state: dict[str, int]) -> None:
        del state


def freeze(seconds: float) -> None:
    """Stop this whole process, as a debugger or a live migration does; another process resumes it."""
    subprocess.Popen(["sh", "-c", f"sleep {seconds}; kill -CONT {os.getpid()}"])
    os.kill(os.getpid(), signal.SIGSTOP)


def make_garbage() -> None:
    """Reference cycles that only the garbage collector can free."""
    for _ in range(_GARBAGE):
        cycle: list[Any] = []
        cycle.append(cycle)


def main() -> None:
    run = dtj.init(seed=1, save_every=10**9)  # saves happen when the plan says so, by keep_best
    model = run.parallel(nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    slow = SlowToSave()
    samples = torch.randn(64, 4, generator=torch.Generator().manual_seed(1))
    data = run.data(torch.utils.data.TensorDataset(samples), global_batch=8)
    run.state(model=model, optimizer=optimizer, data=data, slow=slow)
    note("start", pid=os.getpid(), generation=int(os.environ["DTJ_GENERATION"]))
    is_calm = False

    def suffer(event: Event) -> None:
        mine = event.rank in {None, RANK}
        match event.kind:
            case "evaluation":
                each_s = event.seconds * run.size / _SCORED if mine else 0.0

                def score(mb: Any) -> torch.Tensor:
                    time.sleep(each_s)
                    return torch.zeros(len(mb[0]))

                run.evaluate(score, torch.utils.data.TensorDataset(samples[:_SCORED]), batch=1)
            case "checkpoint":
                slow.seconds = event.seconds
                run.keep_best(float(run.step))  # saved at the end of this step
            case _ if not mine:
                return
            case "slow steps" | "slow start":
                time.sleep(event.seconds)
            case "frozen process":
                freeze(event.seconds)
            case "garbage collection":
                gc.disable()
                make_garbage()
                gc.enable()
                gc.collect()
            case "declared pause":
                with run.pause("the control run's"):
                    time.sleep(event.seconds)

    for batch in run.steps(10**9):
        began = time.monotonic()
        slow.seconds = 0.0
        run.backward(lambda mb: model(mb[0]).square().mean(), batch)
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(STEP_S)
        event = PLAN.get(run.step)
        if event:
            suffer(event)
            if event.kind != "checkpoint":  # that is still to come
                note(event.kind, seconds=time.monotonic() - began)
        if not is_calm and run.step > max(PLAN):
            is_calm = True
            note("calm", step=run.step)


if __name__ == "__main__":
    main()
