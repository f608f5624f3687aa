"""ZeRO stage 1: data parallel, but each rank only keeps the optimizer state of the parameters that it owns.

Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models" (2020). Gradients
are averaged as in DDP; then every rank updates its own parameters and sends them to the other ranks.
"""

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any
from weakref import WeakSet

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from dtj.errors import RecipeError
from dtj.parallel.average import buckets, unflatten
from dtj.parallel.ddp import DataParallel
from dtj.parallel.layout import Layout
from dtj.ranks import waits

# Buckets of updated parameters that are sent at a time: enough to keep the network busy, with little memory.
_IN_FLIGHT = 4


class ZeroOne(DataParallel):
    """Each parameter is owned by one rank: the largest first, each to the rank that owns least so far.

    Optimizers that do not update each parameter independently are refused. In the state of an optimizer,
    parameters keep their numbers; the state of other ranks' parameters is absent.
    """

    replicated = False
    same_optimizer_state = False
    heals = False

    def __init__(self, layout: Layout, device: torch.device) -> None:
        """Register global hooks on optimizer steps: they shard every optimizer of these parameters."""
        super().__init__(layout, device)
        self._owner: dict[Any, int] = {}
        self._seen: WeakSet[Optimizer] = WeakSet()
        register_optimizer_step_pre_hook(self._hide)
        register_optimizer_step_post_hook(self._exchange)

    def wrap(self, model: nn.Module, *, is_healing: bool = False) -> nn.Module:
        """As DDP; also assigns an owner to each parameter."""
        self._owner |= assign_owners(list(model.parameters()), self.layout.data_size)
        return super().wrap(model, is_healing=is_healing)

    def keeps(self, parameter: torch.Tensor) -> bool:
        return self._owner.get(parameter, self.layout.data_rank) == self.layout.data_rank

    def _hide(self, optimizer: Optimizer, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Before a step: drop the gradients of other ranks' parameters; those of a closure after it."""
        others = [parameter for parameter in _parameters(optimizer) if not self.keeps(parameter)]
        if optimizer not in self._seen:  # Adagrad creates the state of every parameter before its first step
            self._seen.add(optimizer)
            for parameter in others:
                optimizer.state.pop(parameter, None)
        self._check(optimizer)
        closure = named.get("closure") or next(iter(args[1:]), None)
        if closure is not None:
            return args[:1], named | {"closure": partial(_without_gradients, others, closure)}
        _without_gradients(others)
        return None

    def _check(self, optimizer: Optimizer) -> None:
        """RecipeError if it treats parameters jointly (LBFGS) or has state beyond that of this rank's own."""
        is_own = all(isinstance(key, torch.Tensor) and self.keeps(key) for key in optimizer.state)
        if is_own and not isinstance(optimizer, torch.optim.LBFGS):
            return
        if any(parameter in self._owner for parameter in _parameters(optimizer)):
            raise RecipeError(
                f"--parallel zero1 cannot shard {type(optimizer).__name__}, which does not update each "
                "parameter independently",
                fix="use an optimizer that does, such as Adam or SGD, or --parallel ddp",
            )

    def _exchange(self, optimizer: Optimizer, *_: Any) -> None:
        pending: deque[tuple[Any, torch.Tensor, Any]] = deque()
        for owner in range(self.layout.data_size):
            owned = (p.detach() for p in _parameters(optimizer) if self._owner.get(p) == owner)
            for bucket in buckets(owned):
                if len(pending) == _IN_FLIGHT:
                    _receive(*pending.popleft())
                flat = torch.cat([p.reshape(-1) for p in bucket])
                pending.append((bucket, flat, dist.broadcast(flat, src=owner, async_op=True)))
        for each in pending:
            _receive(*each)


def _without_gradients(parameters: list[nn.Parameter], closure: Callable[[], Any] = lambda: None) -> Any:
    found = closure()
    for parameter in parameters:
        parameter.grad = None  # optimizers skip parameters without a gradient
    return found


def _receive(bucket: list[torch.Tensor], flat: torch.Tensor, work: Any) -> None:
    waits.wait(work, flat.device)
    unflatten(flat, bucket)


def assign_owners(parameters: list[nn.Parameter], ranks: int) -> dict[nn.Parameter, int]:
    """The owner of each parameter, the same on every rank; loads differ by at most the largest parameter."""
    loads = [0] * ranks
    owners = {}
    for parameter in sorted(parameters, key=lambda p: -p.numel()):
        owners[parameter] = loads.index(min(loads))
        loads[owners[parameter]] += parameter.numel()
    return owners


def _parameters(optimizer: Optimizer) -> list[nn.Parameter]:
    return [p for group in optimizer.param_groups for p in group["params"]]
