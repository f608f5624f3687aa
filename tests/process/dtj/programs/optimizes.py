"""A script that does not use dtj: ordinary DDP. Before its restart rank 1 falls asleep half-way."""

import os
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
life = os.environ["TORCHELASTIC_RESTART_COUNT"]
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(12):
    if (life, dist.get_rank(), step) == ("0", 1, 8):
        time.sleep(600)
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    time.sleep(0.1)  # slow enough for the agent to see that the first steps, which may take longer, are over
print(f"done in life {life}", flush=True)
dist.destroy_process_group()
