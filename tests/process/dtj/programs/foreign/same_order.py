"""same_order.py SCRIPT: runs a script for torchrun, with dtj's order of samples instead of torch's."""

import runpy
import sys

import torch
import torch.distributed as dist

from dtj.data.user_loader import RankSampler


class SameOrder(RankSampler):
    def __init__(self, dataset, *, drop_last=False) -> None:
        ranks = {"rank": dist.get_rank(), "size": dist.get_world_size()}
        super().__init__(length=len(dataset), **ranks, seed=0, shuffle=True, drop_last=drop_last)

    def set_epoch(self, epoch) -> None:
        self.epoch = epoch


torch.utils.data.DistributedSampler = SameOrder
runpy.run_path(sys.argv[1], run_name="__main__")
