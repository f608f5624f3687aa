"""Data parallel: every rank holds the whole model, gradients are averaged while backward still runs."""

import contextlib
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from dtj.errors import RecipeError
from dtj.world import World


class Replica(DistributedDataParallel):
    """DDP that can be laid over a new process group, whoever holds a reference to it."""

    def __init__(self, module: nn.Module, *, device: torch.device, init_sync: bool) -> None:
        # Gradients as views of the buckets: one copy of all gradients less in memory, and no copy in time.
        super().__init__(
            module,
            device_ids=[device.index] if device.index is not None else None,
            gradient_as_bucket_view=True,
            init_sync=init_sync,
        )
        self._own_device = device

    def relay(self) -> None:
        """Average over the present default group; nothing is exchanged, weights are left as they are."""
        module, device, is_training = self.module, self._own_device, self.training
        del self.reducer  # takes its hooks off the parameters
        self.__init__(module, device=device, init_sync=False)  # type: ignore[misc]
        self.train(is_training)  # type: ignore[no-untyped-call]


def wrap(model: nn.Module, *, world: World, device: torch.device, is_healing: bool) -> nn.Module:
    """The model on its device; among several ranks with rank 0's weights and synchronised gradients.

    is_healing  the others train already and will hand over their weights: exchange nothing now
    """
    model = model.to(device)
    if world.size == 1:
        return model
    if not any(p.requires_grad for p in model.parameters()):
        raise RecipeError(
            f"{type(model).__name__} has no parameter that requires a gradient: there is nothing to train",
            fix="unfreeze a layer, or leave the model out of run.parallel",
        )
    return Replica(model, device=device, init_sync=not is_healing)


def relay(model: nn.Module) -> None:
    """After a change of process groups, before the next forward."""
    if isinstance(model, Replica):
        model.relay()


def unwrap(model: nn.Module) -> nn.Module:
    """The user's own module, whose state has no `module.` prefixes."""
    return model.module if isinstance(model, DistributedDataParallel) else model


@contextlib.contextmanager
def without_sync(models: list[nn.Module]) -> Iterator[None]:
    """Backward passes in here only add up locally."""
    with contextlib.ExitStack() as stack:
        for model in models:
            if isinstance(model, DistributedDataParallel):
                stack.enter_context(model.no_sync())
        yield


@contextlib.contextmanager
def evaluating(models: list[nn.Module]) -> Iterator[None]:
    """Evaluation mode, with rank 0's buffers on every rank and no collective in forward.

    Ranks evaluate different numbers of batches, so DDP's own broadcast of buffers (batch norm's statistics)
    before each forward would pair with the wrong message, or with none.
    """
    wrapped = [m for m in models if isinstance(m, DistributedDataParallel)]
    training = [m for m in models if m.training]
    for replicated in wrapped:
        for buffer in replicated.module.buffers():
            dist.broadcast(buffer, src=0)
        replicated.require_forward_param_sync = False
    for model in training:
        model.eval()
    try:
        yield
    finally:
        for model in training:
            model.train()
        for replicated in wrapped:
            replicated.require_forward_param_sync = True
