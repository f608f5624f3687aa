"""Data parallel: every rank holds the whole model, gradients are averaged while backward still runs."""

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from inspect import signature
from typing import Any

import torch
from torch import nn
from torch.autograd.grad_mode import _unsafe_preserve_version_counter
from torch.nn.parallel import DistributedDataParallel

from dtj.errors import RecipeError
from dtj.parallel.compress import Hook, WithFeedback
from dtj.parallel.layout import Layout
from dtj.parallel.strategy import (
    SENT,
    Strategy,
    as_bytes,
    broadcast,
    is_on_several_devices,
    move_to_device,
)
from dtj.ranks import waits

_IGNORED = "_ddp_params_and_buffers_to_ignore"  # torch's attribute of a module
_BUFFERS = "forward_sync_buffers"
if _BUFFERS not in signature(DistributedDataParallel).parameters:
    _BUFFERS = "broadcast_buffers"  # its name in older versions of torch


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
        self.reuses_gradients = isinstance(hook, WithFeedback)

    def wrap(self, model: nn.Module, *, is_healing: bool = False) -> nn.Module:
        """The model in DDP: with rank 0's weights, and gradients that are averaged over all ranks."""
        model = move_to_device(model, self.device)
        return RebuildableDDP(
            model, device=self.device, hook=self._hook, init_sync=not is_healing, **self.ddp_options
        )

    @property
    def _wrapped(self) -> "list[RebuildableDDP]":
        return [model for model in self.models if isinstance(model, RebuildableDDP)]

    def rebuild(self) -> None:
        for model in self._wrapped:
            model.rebuild()

    def begin_backward(self) -> None:
        if self._hook:
            self._hook.begin_backward()

    def undo(self) -> Callable[[], None]:
        return self._hook.undo() if self._hook else super().undo()

    def end_backward(self) -> None:
        """RecipeError if no model was called through DDP, which then averages nothing."""
        wrapped = self._wrapped
        if not any(model.calls for model in wrapped) and any(p.grad is not None for p in self.parameters):
            raise RecipeError(
                "run.backward got a loss of a model that was not called since the last one, so its gradients "
                "would not be averaged over the ranks",
                fix="call what run.parallel returned, not a method of run.unwrap(model): forward can choose "
                "between methods by an argument",
            )
        for model in wrapped:
            model.calls = 0

    @contextlib.contextmanager
    def without_sync(self) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for model in self._wrapped:
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
        wrapped = self._wrapped
        with super().evaluating():
            for model in wrapped:
                model.require_forward_param_sync = False
            try:
                yield
            finally:
                for model in wrapped:
                    model.require_forward_param_sync = True


class RebuildableDDP(DistributedDataParallel):
    """DDP that can switch to a new process group in place, so that references to it stay valid.

    It also follows layers that are frozen or unfrozen after it was made.
    calls  of forward with gradients since the last backward
    """

    def __init__(
        self,
        module: nn.Module,
        *,
        device: torch.device,
        init_sync: bool,
        hook: Hook | None = None,
        **options: Any,
    ) -> None:
        """hook: averages a bucket of gradients. options: further arguments of DistributedDataParallel."""
        arguments = {_BUFFERS if name == "forward_sync_buffers" else name: v for name, v in options.items()}
        # Gradients are views of the buckets: this saves the memory of one copy of all gradients, and copying.
        is_whole = device.index is not None and not is_on_several_devices(module)
        ignored = list(getattr(module, _IGNORED, ()))
        # Not those that are trained: DDP averages no gradient of what it ignores.
        others = (n for n, t in _tensors(module) if t.dtype not in SENT and not t.requires_grad)
        self._sent_as_bytes = set(others) - set(ignored)
        setattr(module, _IGNORED, [*ignored, *self._sent_as_bytes])
        super().__init__(
            module,
            device_ids=[device.index] if is_whole else None,
            gradient_as_bucket_view=True,
            init_sync=init_sync,
            **arguments,
        )
        setattr(module, _IGNORED, ignored)
        for name, tensor in _tensors(module):
            if init_sync and name in self._sent_as_bytes:
                broadcast(tensor)
        self.calls = 0
        self._how = {"device": device, "hook": hook} | options
        own = hook or (Hook() if waits.may_last(device) else None)
        # Registered by the first forward: the user may register another one before, and DDP takes one only.
        self._comm_hook: tuple[object, Any] | None = (None, own.average) if own else None
        self._is_registered = False
        self._all = list(module.parameters())
        self._trained = [p.requires_grad for p in self._all]

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """The module's forward; gradients of its backward are averaged."""
        if torch.is_grad_enabled():
            self.calls += 1
            trained = [p.requires_grad for p in self._all]
            if trained != self._trained and any(trained):
                syncs = self.require_backward_grad_sync
                self.rebuild()
                self.require_backward_grad_sync = syncs
            if self._comm_hook and not self._is_registered:
                self.register_comm_hook(*self._comm_hook)
        return super().forward(*inputs, **named)  # type: ignore[no-untyped-call]

    def register_comm_hook(self, state: object, hook: Any) -> None:
        """As DDP's: the hook averages each bucket of gradients."""
        self._comm_hook, self._is_registered = (state, hook), True
        super().register_comm_hook(state, hook)

    def _assign_modules_buffers(self) -> None:
        """Called by DDP before it sends the buffers."""
        super()._assign_modules_buffers()  # type: ignore[no-untyped-call]
        named = self.module.named_buffers()
        self.modules_buffers += [as_bytes(buffer) for name, buffer in named if name in self._sent_as_bytes]

    def _distributed_broadcast_coalesced(
        self, tensors: list[torch.Tensor], buffer_size: int, authoritative_rank: int = 0
    ) -> None:
        """Called by DDP to send the buffers. DDP's own wait would not end with the generation.

        In torch 2.11 it counts as a change of what an earlier forward of the same step needs in its backward.
        """
        send = partial(super()._distributed_broadcast_coalesced, tensors, buffer_size, authoritative_rank)
        with _unsafe_preserve_version_counter(tuple(tensors)):
            if sum(tensor.nbytes for tensor in tensors) <= waits.LEAST_HELD:
                send()
            else:
                waits.run(send, tensors[0].device)

    def rebuild(self) -> None:
        """Use the current default group from now on. No communication; weights and hooks of the user stay."""
        module, how, is_training = self.module, self._how, self.training
        kept = ("calls", "_comm_hook", *(name for name in vars(nn.Module()) if "hook" in name))
        before = {name: vars(self)[name] for name in kept}
        del self.reducer  # takes its hooks off the parameters
        self.__init__(module, init_sync=False, **how)  # type: ignore[misc]
        vars(self).update(before)
        self.train(is_training)  # type: ignore[no-untyped-call]


def _tensors(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from module.named_parameters()
    yield from module.named_buffers()
