"""Save memory or time, by changing a model in place: names, parameters and checkpoints stay the same."""

import os
import resource
import shutil
import sys
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from dtj.errors import RecipeError
from dtj.telemetry import flops


def recompute(model: nn.Module, blocks: Iterable[nn.Module]) -> None:
    """Activation checkpointing: keep only the input of each block, and run its forward again in backward.

    Chen et al., "Training Deep Nets with Sublinear Memory Cost" (2016): a third more computation, activations
    of one block at a time. The second forward draws the same random numbers (dropout).
    A model of transformers keeps the keys and values of each forward for the generation of text. The second
    forward would add its own to them, so `config.use_cache` becomes False.
    """
    for module in model.modules():
        config: Any = getattr(module, "config", None)
        if getattr(config, "use_cache", False):
            config.use_cache = False
    for block in blocks:
        block.forward = partial(_checkpointed, block.forward)


def _checkpointed(forward: Callable[..., Any], *inputs: Any, **named: Any) -> Any:
    if flops.active is None:
        return checkpoint(forward, *inputs, use_reentrant=False, **named)
    return checkpoint(forward, *inputs, use_reentrant=False, context_fn=flops.active.contexts, **named)


def compile_in_place(blocks: Iterable[nn.Module], device: torch.device) -> None:
    """torch.compile each block. Equal blocks are compiled only once; collectives between blocks stay eager.

    RecipeError on a CPU if there is no C++ compiler.
    """
    compiler = os.environ.get("CXX", "g++")
    if device.type == "cpu" and not shutil.which(compiler):
        raise RecipeError(
            f"--compile on a CPU needs a C++ compiler, but {compiler!r} is not in the PATH",
            fix="install g++ (or set CXX), or omit --compile",
        )
    for block in blocks:
        block.compile()


def most_bytes(device: torch.device) -> int:
    """Peak memory of this process in bytes: tensors on a CUDA device, else resident memory."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
