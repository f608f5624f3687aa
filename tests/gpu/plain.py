"""A script without dtj: ranks average a number by NCCL. In its first life rank 1 does not come to step 3.

$LIMIT  seconds after which a collective has timed out
"""

import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist


def main() -> None:
    rank = int(os.environ["RANK"])
    on_gpu = torch.cuda.is_available()
    limit = timedelta(seconds=float(os.environ["LIMIT"]))
    dist.init_process_group("nccl" if on_gpu else "gloo", timeout=limit)
    number = torch.ones(1, device="cuda" if on_gpu else "cpu")
    for step in range(6):
        if (rank, step, os.environ["TORCHELASTIC_RESTART_COUNT"]) == (1, 3, "0"):
            time.sleep(10_000)
        dist.all_reduce(number)
        print(f"step {step}: {float(number)}", flush=True)
    dist.destroy_process_group()
    print("finished", flush=True)


if __name__ == "__main__":
    main()
