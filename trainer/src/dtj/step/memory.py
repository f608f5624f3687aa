"""Memory and speed of a model, changed in place: names, parameters and checkpoints stay what they are."""

import os
import resource
import shutil
import sys
from collections.abc import Iterable
from functools import partial

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from dtj.errors import RecipeError


def recompute(blocks: Iterable[nn.Module]) -> None:
    """Keep only what goes into each block; backward runs the block once more for the rest.

    Chen et al., "Training Deep Nets with Sublinear Memory Cost" (2016): a third more work, activations of one
    block at a time. Random numbers (dropout) repeat themselves in the second run.
    """
    for block in blocks:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)


def compile_in_place(blocks: Iterable[nn.Module], device: torch.device) -> None:
    """torch.compile each block: equal ones are compiled once, messages between them stay visible."""
    compiler = os.environ.get("CXX", "g++")
    if device.type == "cpu" and not shutil.which(compiler):
        raise RecipeError(
            f"--compile on a CPU needs a C++ compiler, and there is no {compiler!r} in the path",
            fix="install g++ (or set CXX), or leave --compile out",
        )
    for block in blocks:
        block.compile()


def most_bytes(device: torch.device) -> int:
    """The most that this process has held: tensors on an accelerator, resident memory on the CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
