"""A script that does not use dtj: all ranks connect through env:// and add up their numbers."""

import os
import sys

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
total = torch.tensor([dist.get_rank() + 1])
dist.all_reduce(total)
names = ("LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "WORLD_SIZE")
print("sum", total.item(), *(f"{name}={os.environ[name]}" for name in names), *sys.argv[1:], flush=True)
dist.destroy_process_group()
