"""Data parallel: every rank holds the whole model, gradients are averaged while backward still runs."""

import contextlib
from collections.abc import Iterator
from typing import Any, Protocol

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from dtj.parallel.layout import Layout
from dtj.parallel.strategy import Strategy, check_trainable, is_on_several_devices, move_to_device


class Hook(Protocol):
    """What DDP calls for each bucket; paused, it only averages."""

    paused: bool

    def average(self, _state: Any, bucket: Any, /) -> "torch.futures.Future[torch.Tensor]": ...


class DataParallel(Strategy):
    """torch's DistributedDataParallel with weights of unequal shares (step/backward.py).

    It lays its buckets anew after the first backward, so that sums round differently from then on.
    """

    needs_warm_up = True
    heals = True

    def __init__(self, layout: Layout, device: torch.device, *, hook: Hook | None = None) -> None:
        """hook: how a bucket of gradients is averaged (sync/compress.py); None sends it as it is."""
        super().__init__(layout, device)
        self._hook = hook

    def wrap(self, model: nn.Module, *, is_healing: bool = False) -> nn.Module:
        """With rank 0's weights and synchronised gradients."""
        check_trainable(model)
        model = move_to_device(model, self.device)
        wrapped = RebuildableDDP(model, device=self.device, init_sync=not is_healing)
        if self._hook:
            wrapped.register_comm_hook(None, self._hook.average)
        return wrapped

    def unwrap(self, model: nn.Module) -> nn.Module:
        """Without the `module.` prefix."""
        return unwrap(model)

    def rebuild(self) -> None:
        for model in self.models:
            if isinstance(model, RebuildableDDP):
                model.rebuild()
                if self._hook:
                    model.register_comm_hook(None, self._hook.average)

    @contextlib.contextmanager
    def without_sync(self) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for model in self.models:
                if isinstance(model, DistributedDataParallel):
                    stack.enter_context(model.no_sync())
            yield

    @contextlib.contextmanager
    def warming_up(self) -> Iterator[None]:
        """What a hook remembers of gradients is left alone."""
        if self._hook:
            self._hook.paused = True
        try:
            yield
        finally:
            if self._hook:
                self._hook.paused = False

    @contextlib.contextmanager
    def evaluating(self) -> Iterator[None]:
        """Like the others, and without DDP's own broadcast of buffers before each forward."""
        wrapped = [m for m in self.models if isinstance(m, DistributedDataParallel)]
        with super().evaluating():
            for model in wrapped:
                model.require_forward_param_sync = False
            try:
                yield
            finally:
                for model in wrapped:
                    model.require_forward_param_sync = True


class RebuildableDDP(DistributedDataParallel):
    """DDP that can be laid over a new process group, whoever holds a reference to it."""

    def __init__(self, module: nn.Module, *, device: torch.device, init_sync: bool) -> None:
        # Gradients as views of the buckets: one copy of all gradients less in memory, and no copy in time.
        is_whole = device.index is not None and not is_on_several_devices(module)
        super().__init__(
            module,
            device_ids=[device.index] if is_whole else None,
            gradient_as_bucket_view=True,
            init_sync=init_sync,
        )
        self._own_device = device

    def rebuild(self) -> None:
        """Average over the present default group; nothing is exchanged, weights are left as they are."""
        module, device, is_training = self.module, self._own_device, self.training
        del self.reducer  # takes its hooks off the parameters
        self.__init__(module, device=device, init_sync=False)  # type: ignore[misc]
        self.train(is_training)  # type: ignore[no-untyped-call]


def unwrap(model: nn.Module) -> nn.Module:
    """The user's own module, whose state has no `module.` prefixes."""
    return model.module if isinstance(model, DistributedDataParallel) else model
