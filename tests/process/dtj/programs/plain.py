"""A script that does not use dtj and saves by itself: counts steps in a file of its own.

$FAIL is rank@step:how; it happens before the first restart only.
After step $WAIT_AT rank 0 creates the file at-<step> and waits for the file go.
"""

import json
import os
import signal
import time
from pathlib import Path

import torch
import torch.distributed as dist

OUT = Path(os.environ["OUT"])
dist.init_process_group("gloo")
rank = dist.get_rank()
file = OUT / "state.json"
step, total = json.loads(file.read_text()) if file.exists() else (0, 0.0)
print(f"rank {rank} begins at {step} in life {os.environ['TORCHELASTIC_RESTART_COUNT']}", flush=True)
who, _, rest = os.environ["FAIL"].partition("@")
when, _, how = rest.partition(":")
while step < 12:
    value = torch.tensor([float(step * (rank + 1))])
    dist.all_reduce(value)
    step, total = step + 1, total + value.item()
    if rank == 0 and step % 3 == 0:
        file.with_suffix(".new").write_text(json.dumps([step, total]))
        file.with_suffix(".new").rename(file)
    if rank == 0 and step == int(os.environ.get("WAIT_AT", "-1")):
        (OUT / f"at-{step}").touch()
        while not (OUT / "go").exists():
            time.sleep(0.005)
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and (rank, step) == (int(who), int(when)):
        if how == "raise":
            raise ValueError("a label is out of range")
        os.kill(os.getpid(), signal.Signals[how])
dist.barrier()
print(f"rank {rank} ends with {total}", flush=True)
dist.destroy_process_group()
