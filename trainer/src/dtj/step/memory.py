"""Memory and speed of a model, changed in place: names, parameters and checkpoints stay what they are."""

from collections.abc import Iterable
from functools import partial

from torch import nn
from torch.utils.checkpoint import checkpoint


def recompute(blocks: Iterable[nn.Module]) -> None:
    """Keep only what goes into each block; backward runs the block once more for the rest.

    Chen et al., "Training Deep Nets with Sublinear Memory Cost" (2016): a third more work, activations of one
    block at a time. Random numbers (dropout) repeat themselves in the second run.
    """
    for block in blocks:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)


def compile_in_place(blocks: Iterable[nn.Module]) -> None:
    """torch.compile each block: equal ones are compiled once, messages between them stay visible."""
    for block in blocks:
        block.compile()
