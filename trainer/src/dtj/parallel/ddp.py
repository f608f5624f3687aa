"""Data parallel: every rank holds the whole model, gradients are averaged while backward still runs."""

import contextlib
from collections.abc import Iterator
from typing import Any, Protocol

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from dtj.parallel.layout import Layout
from dtj.parallel.strategy import Strategy, check_trainable


class Hook(Protocol):
    """What DDP calls for each bucket; paused, it only averages."""

    paused: bool

    def average(self, _state: Any, bucket: Any, /) -> "torch.futures.Future[torch.Tensor]": ...


class DataParallel(Strategy):
    """torch's DistributedDataParallel with weights of unequal shares (step/backward.py).

    It lays its buckets anew after the first backward, so that sums round differently from then on.
    """

    settles = True

    def __init__(self, layout: Layout, device: torch.device, *, hook: Hook | None = None) -> None:
        """hook: how a bucket of gradients is averaged (sync/compress.py); None sends it as it is."""
        super().__init__(layout, device)
        self._hook = hook

    def wrap(self, model: nn.Module) -> nn.Module:
        """With rank 0's weights and synchronised gradients."""
        check_trainable(model)
        index = self.device.index
        # Gradients as views of the buckets: one copy of all gradients less in memory, and no copy in time.
        wrapped = DistributedDataParallel(
            model.to(self.device),
            device_ids=[index] if index is not None else None,
            gradient_as_bucket_view=True,
        )
        if self._hook:
            wrapped.register_comm_hook(None, self._hook.average)
        return wrapped

    def unwrap(self, model: nn.Module) -> nn.Module:
        """Without the `module.` prefix."""
        return unwrap(model)

    @contextlib.contextmanager
    def without_sync(self, models: list[nn.Module]) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for model in models:
                if isinstance(model, DistributedDataParallel):
                    stack.enter_context(model.no_sync())
            yield

    @contextlib.contextmanager
    def settling(self) -> Iterator[None]:
        """What a hook remembers of gradients is left alone."""
        if self._hook:
            self._hook.paused = True
        try:
            yield
        finally:
            if self._hook:
                self._hook.paused = False

    @contextlib.contextmanager
    def evaluating(self, models: list[nn.Module]) -> Iterator[None]:
        """Like the others, and without DDP's own broadcast of buffers before each forward."""
        wrapped = [m for m in models if isinstance(m, DistributedDataParallel)]
        with super().evaluating(models):
            for model in wrapped:
                model.require_forward_param_sync = False
            try:
                yield
            finally:
                for model in wrapped:
                    model.require_forward_param_sync = True


def unwrap(model: nn.Module) -> nn.Module:
    """The user's own module, whose state has no `module.` prefixes."""
    return model.module if isinstance(model, DistributedDataParallel) else model
