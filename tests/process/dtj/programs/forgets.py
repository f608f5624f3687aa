"""A script that does not use dtj and starts at step 1 in every life; $LIVES: the steps before each crash."""

import os
import signal
import time

import torch

optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
life = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
for _ in range(int(os.environ["LIVES"].split(",")[life])):
    optimizer.step()
    time.sleep(0.1)
os.kill(os.getpid(), signal.SIGKILL)
