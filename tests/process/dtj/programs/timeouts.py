"""Prints the time-outs of all process groups, in seconds."""

import os

import torch
import torch.distributed as dist
from torch import nn

import dtj


class Model(nn.Sequential):
    def tensor_plan(self, ranks: int) -> dict[str, str]:
        return {"0": "columns", "2": "rows"}

    def pipeline_plan(self) -> list[tuple[nn.Module, list[nn.Module]]]:
        return [(layer, [layer]) for layer in self]


run = dtj.init()
first, last = nn.Linear(8, 8), nn.Linear(8, 8)
if "pp" in os.environ["DTJ_PARALLEL"]:
    last.weight = first.weight  # stages of a pipeline that share a weight have a group of their own
run.state(model=run.parallel(Model(first, nn.ReLU(), last)))
for _ in run.steps(2):  # a save in the background has a group of its own
    pass
groups = [group._get_backend(torch.device("cpu")) for group in dist.distributed_c10d._world.pg_map]
print("timeouts", {group.options._timeout.total_seconds() for group in groups}, flush=True)
dist.barrier()  # a slow rank still connects, and would lose a peer that ends now
