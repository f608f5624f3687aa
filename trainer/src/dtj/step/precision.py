"""The floating-point type of the forward pass. Parameters, gradients and the optimizer keep the model's type.

fp32    the default; --tf32 lets CUDA round the inputs of matrix products to 10 bits of mantissa
bf16    range of float32, 8 bits of mantissa: needs no loss scaling
fp16    11 bits of mantissa, but gradients below 6e-8 become zero: the loss is scaled up, gradients down
"""

import contextlib
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from dtj.parallel.strategy import local_part, parameters_of

_TYPES = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}
# Micikevicius et al., "Mixed Precision Training" (2018), with the constants of torch's GradScaler.
_FIRST_SCALE, _GROWTH, _BACKOFF, _GROW_EVERY = 2.0**16, 2.0, 0.5, 2000

_FULL = contextlib.nullcontext()


class Precision:
    """The precision of a run; with fp16 also the state of the loss scale, which is saved in checkpoints.

    half    type of autocast; None for fp32
    scale   factor of the loss; 1 unless fp16
    scales  True for fp16
    """

    def __init__(self, name: str, device: torch.device) -> None:
        self.half = _TYPES[name]
        self.scale = _FIRST_SCALE if name == "fp16" else 1.0
        self.scales = name == "fp16"
        self._device = device
        self._good_steps = 0
        self._optimizers: list[Optimizer] = []
        self._overflowed: set[nn.Parameter] = set()  # since the last step of an optimizer that trains them
        if self.scales:
            register_optimizer_step_post_hook(self._forget)

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        """Context for forward and loss."""
        if self.half is None:
            return _FULL
        return torch.autocast(self._device.type, dtype=self.half)

    def watch(self, optimizer: Optimizer) -> None:
        """Skip its next step after an overflow, also if other passes of that step do not overflow."""
        self._optimizers.append(optimizer)

    def drop_overflowed(self) -> None:
        """Drop the gradients that a pass which overflowed is missing in; called after each pass."""
        for parameter in self._overflowed:
            parameter.grad = None

    def unscale(self, parameters: Iterable[nn.Parameter], *, all_finite: Any) -> None:
        """Divide gradients by the scale; if they overflowed on any rank, drop all of them.

        all_finite  () bool tensor of this rank -> bool, the same on every rank. The only wait for the device.
        After an overflow the scale is halved. Optimizers skip parameters without a gradient, so the step is
        skipped: those that are watched until their next step, see `watch`.
        """
        mine = [p for p in parameters if p.grad is not None]
        finite = torch.stack([~found.bool() for found in self._divided(mine)]).all()
        if all_finite(finite):
            self._good_steps += 1
            if self._good_steps % _GROW_EVERY == 0:
                self.scale *= _GROWTH
        else:
            for parameter in mine:
                parameter.grad = None
            for trained in map(_parameters, self._optimizers):
                if not trained.isdisjoint(mine):
                    self._overflowed |= trained
            self.scale *= _BACKOFF
            self._good_steps = 0

    def _divided(self, parameters: Iterable[nn.Parameter]) -> list[torch.Tensor]:
        """Divide the gradients by the scale; one () tensor per device and type: 1 if one is not finite."""
        groups: dict[Any, list[torch.Tensor]] = defaultdict(list)
        for parameter in parameters:
            gradient = local_part(parameter.grad)
            if gradient.is_sparse:  # of an embedding; a row that is in it several times is added up
                parameter.grad = gradient.coalesce()
                gradient = parameter.grad.values()
            groups[gradient.device, gradient.dtype].append(gradient)
        found = [torch.zeros((), device=self._device)]
        for (device, _), gradients in groups.items():
            bad = torch.zeros(1, dtype=torch.float32, device=device)  # whatever the default type is
            factor = torch.full_like(bad, 1 / self.scale)
            torch._amp_foreach_non_finite_check_and_unscale_(gradients, bad, factor)
            found.append(bad[0].to(self._device))
        return found

    def _forget(self, optimizer: Optimizer, *_: Any) -> None:
        """After a step of any optimizer."""
        if self._overflowed:  # rarely: a large model has thousands of parameters to go through
            self._overflowed -= _parameters(optimizer)

    def state_dict(self) -> dict[str, Any]:
        """The scale, how many steps without overflow it has had, and which optimizers skip their next step.

        A rank that joins between two passes of a step must skip it, too.
        """
        trained = enumerate(map(_parameters, self._optimizers))
        skip = [number for number, each in trained if not each.isdisjoint(self._overflowed)]
        return {"scale": self.scale, "good_steps": self._good_steps, "skip": skip}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """What `state_dict` returned for the same optimizers."""
        self.scale, self._good_steps = state["scale"], int(state["good_steps"])
        skip = (_parameters(self._optimizers[number]) for number in state.get("skip", ()))
        self._overflowed = set().union(*skip)


def _parameters(optimizer: Optimizer) -> set[nn.Parameter]:
    return set(parameters_of(optimizer))


def true_on_all_ranks(mine: torch.Tensor) -> bool:
    """True if `mine`, () bool, is true on every rank. Waits for the device."""
    worst = mine.to(torch.uint8)
    if dist.is_initialized():
        dist.all_reduce(worst, op=dist.ReduceOp.MIN)
    return bool(worst)
