"""A script that does not use dtj and saves every step; $LIVES: the steps before each of its crashes."""

import os
import signal
from pathlib import Path

import torch

FILE = Path(os.environ["OUT"]) / "checkpoint.pt"
LIVES = [int(steps) for steps in os.environ["LIVES"].split(",")]

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.AdamW(model.parameters())
step = 0
if FILE.exists():
    saved = torch.load(FILE)
    step = saved["step"]
    optimizer.load_state_dict(saved["optimizer"])
life = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
end = step + LIVES[life] if life < len(LIVES) else 20
while step < end:
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    step += 1
    torch.save({"step": step, "optimizer": optimizer.state_dict()}, FILE)
if life < len(LIVES):
    os.kill(os.getpid(), signal.SIGKILL)
