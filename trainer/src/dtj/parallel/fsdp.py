"""Fully sharded data parallel: each rank keeps a shard of every parameter, gradient and optimizer state.

A block's parameters are gathered just before it runs and freed right after. FSDP shards over all ranks. HSDP
shards within groups of ranks (a node), each of which has a whole copy: the heavy traffic stays in the node.
"""

import contextlib
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from dtj.errors import RecipeError
from dtj.parallel.layout import Layout
from dtj.parallel.strategy import Strategy, blocks, broadcast_weights, make_mesh


class FullyShard(Strategy):
    """torch's fully_shard (FSDP2) on every block, then on the rest.

    Gradients are reduced after each micro-batch. With `reduce_once` they are reduced once a step, which sends
    less; but every rank holds all gradients unsharded meanwhile, and micro-batches are there to save memory.
    """

    replicated = False
    in_lockstep = True
    loads_shards = True
    sends_in_forward = True

    def __init__(
        self, layout: Layout, device: torch.device, *, half: torch.dtype | None, reduce_once: bool = False
    ) -> None:
        """half: gather parameters and compute in this type; shards, sums and the optimizer stay float32."""
        super().__init__(layout, device)
        self._half, self._reduce_once = half, reduce_once

    def wrap(self, model: nn.Module, *, is_healing: bool = False) -> nn.Module:
        """Shard the model in place, block by block, so that no device ever holds the whole model."""
        broadcast_weights(model, self.device)
        mesh = make_mesh(self.layout, self.device)
        shard(model, mesh, half=self._half)
        return model

    @contextlib.contextmanager
    def without_sync(self) -> Iterator[None]:
        models: list[Any] = self.models if self._reduce_once else []
        for model in models:
            model.set_requires_gradient_sync(False)
        try:
            yield
        finally:
            for model in models:
                model.set_requires_gradient_sync(True)


def shard(model: nn.Module, mesh: Any, *, half: torch.dtype | None) -> None:
    """Shard a model in place over a device mesh: every block, then the rest. half: as of FullyShard."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard  # noqa: PLC0415

    for name, parameter in model.named_parameters():
        if found := _obstacle(parameter):
            raise RecipeError(
                f"{name} {found}, so it cannot be sharded",
                fix="change it (reshape(1), contiguous()) or leave it out, or use --parallel ddp or zero1",
            )
    policy = MixedPrecisionPolicy(param_dtype=half, reduce_dtype=torch.float32 if half else None)
    users = _users(model)
    # A block that shares a weight with other modules is gathered with the rest, which holds the shared one.
    own = [block for block in blocks(model) if _users(block).items() <= users.items()]
    for module in (*own, model):
        fully_shard(module, mesh=mesh, mp_policy=policy)
    model.register_forward_hook(_free_without_backward)


def _users(model: nn.Module) -> Counter[nn.Parameter]:
    """How many modules have each parameter."""
    return Counter(p for m in model.modules() for p in m.parameters(recurse=False))


def _obstacle(parameter: torch.Tensor) -> str | None:
    """What fully_shard cannot take."""
    if not parameter.ndim:
        return "has no dimension"
    if not parameter.numel():
        return "has no element"
    return None if parameter.is_contiguous() else f"is not contiguous: its strides are {parameter.stride()}"


def _free_without_backward(model: Any, _inputs: Any, _output: Any) -> None:
    """Free the root's gathered parameters after an evaluation; FSDP would keep them until the next backward.

    An optimizer or an EMA created meanwhile would hold them instead of the shards, and the next forward would
    not see weights that were exchanged.
    """
    if not torch.is_grad_enabled():
        model.reshard()
