"""Trains two steps of a larger model and saves; started again, it restores.

Each rank prints: "memory <bytes of its state> <bytes of its weights, and by which its memory grew>".
"""

from typing import Any

import torch
import torch.distributed.checkpoint  # now, so that it does not count
import torch.distributed.fsdp
from torch import nn
from torch.utils.data import TensorDataset

import dtj
from tests.process.dtj.programs.large import memory

WIDTH, LAYERS = 1024, 12


def bytes_of(state: Any) -> int:
    """Of this rank's tensors."""
    if isinstance(state, dict):
        return sum(bytes_of(value) for value in state.values())
    if isinstance(state, list):
        return sum(bytes_of(value) for value in state)
    local = state.to_local() if hasattr(state, "to_local") else state
    return local.nbytes if isinstance(local, torch.Tensor) else 0


def main() -> None:
    run = dtj.init()
    model = run.parallel(nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))))
    optimizer = torch.optim.Adam(model.parameters())
    data = run.data(TensorDataset(torch.ones(64, WIDTH)), global_batch=4)
    before = memory("VmRSS")
    run.state(model=model, optimizer=optimizer, data=data)
    grown, weights = memory("VmHWM") - before, bytes_of(model.state_dict())
    print("memory", weights + bytes_of(optimizer.state_dict()), weights + grown)
    for batch in run.steps(2):
        run.backward(lambda mb: model(mb[0]).square().mean(), batch)
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
