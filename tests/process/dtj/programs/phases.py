"""Trains in one loop per epoch, each with an evaluation; $FAULT, "loop:where", kills rank 1 there, once.

Every rank writes its weights to $OUT/weights-RANK.pt.
"""

import os
import signal
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import TensorDataset

import dtj

OUT = Path(os.environ["OUT"])
STEPS = 4  # of a loop


def main() -> None:
    run = dtj.init()
    model = run.parallel(nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    x = torch.randn(32, 4, generator=torch.Generator().manual_seed(1))
    data = run.data(TensorDataset(x), global_batch=8)
    run.state(model=model, optimizer=optimizer, data=data)

    def fault(loop: int, where: str) -> None:
        if run.rank == 1 and f"{loop}:{where}" == os.environ.get("FAULT") and not (OUT / "fault").exists():
            (OUT / "fault").touch()
            os.kill(os.getpid(), signal.SIGKILL)

    for loop in range(3):
        for batch in run.steps(STEPS * (loop + 1)):
            fault(loop, str(run.step % STEPS))
            loss = run.backward(lambda mb: (model(mb[0]) - 1).square().mean(), batch)
            optimizer.step()
            optimizer.zero_grad()
            run.log(loss=loss)
        fault(loop, "after")
        run.evaluate(lambda mb: model(mb[0]).square().mean(-1), TensorDataset(x))
    torch.save(model.state_dict(), OUT / f"weights-{run.rank}.pt")


if __name__ == "__main__":
    main()
