"""Data parallel: every rank holds the whole model, gradients are averaged while backward still runs."""

import contextlib
from collections.abc import Iterator
from inspect import signature
from typing import Any, Protocol

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from dtj.parallel.layout import Layout
from dtj.parallel.strategy import Strategy, check_trainable, is_on_several_devices, move_to_device

_BUFFERS = "forward_sync_buffers"
if _BUFFERS not in signature(DistributedDataParallel).parameters:
    _BUFFERS = "broadcast_buffers"  # its name in older versions of torch


class Hook(Protocol):
    """A DDP communication hook, called for each bucket; while `paused`, it only averages."""

    paused: bool

    def average(self, _state: Any, bucket: Any, /) -> "torch.futures.Future[torch.Tensor]": ...


class DataParallel(Strategy):
    """torch's DistributedDataParallel. Batches of different sizes are weighted in step/backward.py.

    DDP rebuilds its buckets after the first backward, and sums round differently from then on.
    """

    needs_warm_up = True
    heals = True

    def __init__(self, layout: Layout, device: torch.device, *, hook: Hook | None = None) -> None:
        """hook: averages a bucket of gradients (compress.py); None: DDP's own all-reduce."""
        super().__init__(layout, device)
        self._hook = hook

    def wrap(self, model: nn.Module, *, is_healing: bool = False) -> nn.Module:
        """The model in DDP: with rank 0's weights, and gradients that are averaged over all ranks."""
        check_trainable(model)
        model = move_to_device(model, self.device)
        wrapped = RebuildableDDP(model, device=self.device, init_sync=not is_healing, **self.ddp_options)
        if self._hook:
            wrapped.register_comm_hook(None, self._hook.average)
        return wrapped

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
        """Pause the hook, so that it does not remember these gradients."""
        if self._hook:
            self._hook.paused = True
        try:
            yield
        finally:
            if self._hook:
                self._hook.paused = False

    @contextlib.contextmanager
    def evaluating(self) -> Iterator[None]:
        """As in other strategies, but also without DDP's broadcast of buffers before each forward."""
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
    """DDP that can switch to a new process group in place, so that references to it stay valid."""

    def __init__(self, module: nn.Module, *, device: torch.device, init_sync: bool, **options: Any) -> None:
        """options: further arguments of DistributedDataParallel."""
        arguments = {_BUFFERS if name == "forward_sync_buffers" else name: v for name, v in options.items()}
        # Gradients are views of the buckets: this saves the memory of one copy of all gradients, and copying.
        is_whole = device.index is not None and not is_on_several_devices(module)
        super().__init__(
            module,
            device_ids=[device.index] if is_whole else None,
            gradient_as_bucket_view=True,
            init_sync=init_sync,
            **arguments,
        )
        self._own_device, self._options = device, options

    def rebuild(self) -> None:
        """Use the current default group from now on. No communication; weights stay as they are."""
        module, device, options, is_training = self.module, self._own_device, self._options, self.training
        del self.reducer  # takes its hooks off the parameters
        self.__init__(module, device=device, init_sync=False, **options)  # type: ignore[misc]
        self.train(is_training)  # type: ignore[no-untyped-call]
