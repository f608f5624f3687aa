"""A script that does not use dtj: a step every $STEP_S seconds until $OUT has a file finish.

seen-0.txt  one line per step of rank 0
"""

import os
import time
from pathlib import Path

import torch
import torch.distributed as dist

OUT = Path(os.environ["OUT"])
dist.init_process_group("gloo")
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
is_over = torch.zeros(1)
while not is_over.item():
    model(torch.ones(2)).sum().backward()
    optimizer.step()
    time.sleep(float(os.environ["STEP_S"]))
    if dist.get_rank() == 0:
        is_over[0] = float((OUT / "finish").exists())
        with (OUT / "seen-0.txt").open("a") as seen:
            seen.write("step\n")
    dist.broadcast(is_over, 0)
dist.barrier()
dist.destroy_process_group()
