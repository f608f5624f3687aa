"""Ordinary DDP that does not use dtj. Rank 1 crashes after its first step, once."""

import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def step() -> float:
    """Run one step on all ranks; return the time at which the last rank had done it."""
    model = DistributedDataParallel(torch.nn.Linear(64, 64))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(8, 64)).sum().backward()
    optimizer.step()
    dist.barrier()
    return time.time()


def main(folder: Path) -> None:
    dist.init_process_group("gloo")
    at = step()
    notes = folder / "notes.json"
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        if dist.get_rank() == 1:
            notes.write_text(json.dumps({"first_step_at": at, "crashed_at": time.time()}))
            os._exit(3)
        dist.barrier()  # until the loss of the other rank is noticed
    elif dist.get_rank() == 0:
        print("result", json.dumps(json.loads(notes.read_text()) | {"next_step_at": at}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
