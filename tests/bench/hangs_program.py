"""Trains, and hangs as $OUT/order says: which rank, in which way, after which step.

$OUT/events-<rank>.jsonl gets an object for the begin of every hang; $OUT/step-<rank> has its last step; and
$OUT/found-<number> says whether a hang is over.
"""

import json
import mmap
import os
import signal
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import dtj

RANK = int(os.environ["RANK"])
OUT = Path(os.environ["OUT"])
STEP_S = 0.5
PAUSE_S = 40.0
_FOR_EVER_S = 1e6


class Stuck(Dataset[int]):
    """Its worker waits for a sample that never arrives."""

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> int:
        time.sleep(_FOR_EVER_S)
        return index


class Volume:
    """A part of the state whose copy for a checkpoint stalls."""

    def __init__(self) -> None:
        self.stalls = False

    def state_dict(self) -> dict[str, int]:
        if self.stalls:
            note()
            time.sleep(_FOR_EVER_S)
        return {}

    def load_state_dict(self, state: dict[str, int]) -> None:
        del state


def note() -> None:
    """Say that a hang begins."""
    with (OUT / f"events-{RANK}.jsonl").open("a") as file:
        file.write(json.dumps({"at": time.monotonic()}) + "\n")


def read_device(number: int) -> None:
    """Wait at one line, as `.item()` does while a kernel runs, until the hang of another rank is over."""
    with (
        (OUT / f"found-{number}").open("rb") as file,
        mmap.mmap(file.fileno(), 1, prot=mmap.PROT_READ) as flag,
    ):
        while not flag[0]:  # neither this nor the sleep calls a function of Python
            time.sleep(0.01)


def hang(way: str, number: int, run: dtj.Run) -> None:
    note()
    match way:
        case "stopped":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "loop":
            while True:
                pass
        case "loader":
            next(iter(DataLoader(Stuck(), num_workers=1)))
        case "asleep" | "device":
            time.sleep(_FOR_EVER_S)
        case "pause":
            with run.pause("the bench's", at_most_s=PAUSE_S):
                time.sleep(_FOR_EVER_S)
        case _:
            raise ValueError(f"{way!r} of hang {number} is not a way to hang")


def main() -> None:
    run = dtj.init(seed=1, save_every=10**9)
    model = run.parallel(nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    volume = Volume()
    samples = torch.randn(64, 4, generator=torch.Generator().manual_seed(1))
    data = run.data(TensorDataset(samples), global_batch=8)
    run.state(model=model, optimizer=optimizer, data=data, volume=volume)
    orders = OUT / "order"
    for batch in run.steps(10**9):
        run.backward(lambda mb: model(mb[0]).square().mean(), batch)
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(STEP_S)
        (OUT / f"step-{RANK}").write_text(str(run.step))
        order: dict[str, Any] = json.loads(orders.read_text()) if orders.exists() else {"after": None}
        if order["after"] != run.step or (OUT / f"found-{order['number']}").read_bytes() == b"1":
            continue
        if order["way"] == "save":
            volume.stalls = order["rank"] == RANK  # the others hand over their state afterwards
            run.keep_best(float(run.step))  # saved at the end of this step, by rank 0
        elif order["rank"] == RANK:
            hang(order["way"], order["number"], run)
        elif order["way"] == "device":
            read_device(order["number"])


if __name__ == "__main__":
    main()
