"""A script that starts the processes of its group itself, at an address of its own, as many tutorials do."""

import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def train(rank: int) -> None:
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "localhost", os.environ["OWN_PORT"]
    dist.init_process_group("gloo", rank=rank, world_size=2)
    total = torch.tensor(rank + 1)
    dist.all_reduce(total)
    print(f"process {rank} has {int(total)}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.start_processes(train, nprocs=2, start_method="fork")  # "spawn" would import torch again
