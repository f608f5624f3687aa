"""A small training program for tests, which runs in the pods; its flags choose a fault.

It prints a line with the number of each step, so that a test can read in the logs which steps ran, and where.
A file /tmp/finish in a pod ends the training.
"""

import argparse
import os
import sys
import time
from pathlib import Path

import torch

import dtj
from dtj.errors import DeviceError

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=40)
parser.add_argument("--step-s", type=float, default=0.05, help="seconds to sleep in each step")
parser.add_argument("--save-every", type=int, default=5)
parser.add_argument("--crash", choices=["raise", "exit", "memory", "gpu"])
parser.add_argument("--crash-rank", type=int, default=1, help="-1: all ranks")
parser.add_argument("--crash-at", type=int, default=17)
parser.add_argument(
    "--crash-lives",
    type=int,
    default=1,
    help="crash in the first N generations or attempts, then run normally",
)
parser.add_argument("--code", type=int, default=1)
given = parser.parse_args()

run = dtj.init(save_every=given.save_every)
inputs = torch.randn(512, 8, generator=torch.Generator().manual_seed(0))
model = run.parallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
data = run.data(torch.utils.data.TensorDataset(inputs, inputs.sum(1, keepdim=True)), global_batch=32)
run.state(model=model, opt=optimizer, data=data)
attempt = int(os.environ.get("DTJ_ATTEMPT", "0"))
life = attempt + int(os.environ.get("DTJ_GENERATION", "1"))


def crash() -> None:
    """End this rank as --crash says."""
    if given.crash == "raise":
        raise RuntimeError(f"ordered failure of rank {run.rank}")
    if given.crash == "gpu":
        raise DeviceError("this machine has a GPU, but it cannot be used: CUDA unknown error")
    hoard = []
    while given.crash == "memory":  # until the kernel kills it
        hoard.append(b"x" * 2**26)
    sys.exit(given.code)


for batch in run.steps(given.steps):
    due = given.crash and life <= given.crash_lives and run.step == given.crash_at
    if due and given.crash_rank in {run.rank, -1}:
        crash()
    loss = run.backward(lambda mb: torch.nn.functional.mse_loss(model(mb[0]), mb[1]), batch)
    optimizer.step()
    optimizer.zero_grad()
    run.log(loss=loss)
    print(
        f"did step {run.step + 1} attempt {attempt} on {Path('/etc/hostname').read_text().strip()}",
        flush=True,
    )
    if Path("/tmp/finish").exists():
        run.finish()
    time.sleep(given.step_s)
