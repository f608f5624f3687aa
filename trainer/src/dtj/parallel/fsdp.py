"""Fully sharded data parallel: each rank keeps a shard of every parameter, gradient and optimizer state.

A block's parameters are gathered just before it runs and freed right after. FSDP shards over all ranks. HSDP
shards within groups of ranks (a node), each of which has a whole copy: the heavy traffic stays in the node.
"""

import torch
from torch import nn

from dtj.parallel.layout import Layout
from dtj.parallel.strategy import Strategy, blocks, broadcast_weights, check_trainable


class FullyShard(Strategy):
    """torch's fully_shard (FSDP2) on every block, then on the rest.

    Gradients are reduced after each micro-batch. To do it once a step would send less, but every rank would
    hold all gradients unsharded meanwhile: more memory, and micro-batches are there to need less.
    """

    replicated = False
    in_lockstep = True

    def __init__(self, layout: Layout, device: torch.device, *, half: torch.dtype | None) -> None:
        """half: gather parameters and compute in this type; shards, sums and the optimizer stay float32."""
        super().__init__(layout, device)
        self._half = half

    def wrap(self, model: nn.Module, *, is_healing: bool = False) -> nn.Module:
        """Shard the model in place, block by block, so that no device ever holds the whole model."""
        # Imported here because it takes half a second, which other strategies need not spend.
        from torch.distributed.device_mesh import init_device_mesh  # noqa: PLC0415
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard  # noqa: PLC0415

        check_trainable(model)
        broadcast_weights(model, self.device)
        sizes = self.layout.sizes
        mesh = init_device_mesh(self.device.type, tuple(sizes.values()), mesh_dim_names=tuple(sizes))
        policy = MixedPrecisionPolicy(
            param_dtype=self._half, reduce_dtype=torch.float32 if self._half else None
        )
        for block in blocks(model):
            fully_shard(block, mesh=mesh, mp_policy=policy)
        fully_shard(model, mesh=mesh, mp_policy=policy)
        return model
