"""A script that does not use dtj: it trains, is silent for long in the middle, and trains on.

$WAY says what happens in the silence of the first life; see below. An evaluation ends once the file
$OUT/go exists. No rank waits for another in a collective.
"""

import hashlib
import os
import time
from pathlib import Path

import torch

NOT_SEEN_S = 1.5  # that CPU time is used is first seen 2 s after the last step
RANK, LIFE = int(os.environ["RANK"]), os.environ["TORCHELASTIC_RESTART_COUNT"]
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train() -> None:
    for _ in range(12):
        optimizer.zero_grad()
        model(torch.ones(8, 64)).sum().backward()
        optimizer.step()
        time.sleep(0.05)


def evaluate() -> None:
    time.sleep(NOT_SEEN_S)
    with torch.no_grad():
        while not Path(os.environ["OUT"], "go").exists():
            model(torch.ones(256, 64)).sum().item()


def wait_for_device() -> None:
    """The host waits for an accelerator in one call, which keeps a CPU busy."""
    time.sleep(NOT_SEEN_S)
    hashlib.pbkdf2_hmac("sha256", b"", b"", 2**31 - 1)


def wait_elsewhere() -> None:
    time.sleep(600)


train()
match os.environ["WAY"] if LIFE == "0" else "":
    case "evaluate":
        evaluate()
    case "one elsewhere":
        (wait_elsewhere if RANK == 1 else wait_for_device)()
    case "all alike":
        wait_for_device()
train()
print(f"done in life {LIFE}", flush=True)
