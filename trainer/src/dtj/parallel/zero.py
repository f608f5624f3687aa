"""ZeRO stage 1: data parallel, but each rank only keeps the optimizer state of the parameters that it owns.

Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models" (2020). Gradients
are averaged as in DDP; then every rank updates its own parameters and sends them to the other ranks.
"""

import math
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from dtj.errors import RecipeError
from dtj.parallel.average import buckets, unflatten
from dtj.parallel.ddp import DataParallel
from dtj.parallel.layout import Layout
from dtj.parallel.strategy import parameters_of
from dtj.ranks import waits

# Buckets of updated parameters that are sent at a time: enough to keep the network busy, with little memory.
_IN_FLIGHT = 4
# Processors of different kinds may compute a learning rate that differs in its last bits.
_ROUNDING = 1e-6


class ZeroOne(DataParallel):
    """Each parameter is owned by one rank: the largest first, each to the rank that owns least so far.

    Optimizers that do not update each parameter independently are refused: at once if their state shows it,
    after steps 1, 2, 4, 8, ... if the numbers of their groups do, such as a step size that comes from all
    gradients. In the state of an optimizer, parameters keep their numbers; that of other ranks' parameters is
    absent.
    """

    replicated = False
    same_optimizer_state = False
    heals = False

    def __init__(self, layout: Layout, device: torch.device) -> None:
        """Register global hooks on optimizer steps: they shard every optimizer of these parameters."""
        super().__init__(layout, device)
        self._owner: dict[Any, int] = {}
        self._steps: WeakKeyDictionary[Optimizer, int] = WeakKeyDictionary()  # done in this process
        register_optimizer_step_pre_hook(self._hide)
        register_optimizer_step_post_hook(self._after_step)

    def wrap(self, model: nn.Module, *, is_healing: bool = False) -> nn.Module:
        """As DDP; also assigns an owner to each parameter."""
        self._owner |= assign_owners(list(model.parameters()), self.layout.data_size)
        return super().wrap(model, is_healing=is_healing)

    def keeps(self, parameter: torch.Tensor) -> bool:
        return self._owner.get(parameter, self.layout.data_rank) == self.layout.data_rank

    def _hide(self, optimizer: Optimizer, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Before a step: drop the gradients of other ranks' parameters; those of a closure after it."""
        others = [parameter for parameter in parameters_of(optimizer) if not self.keeps(parameter)]
        if optimizer not in self._steps:  # Adagrad creates the state of every parameter before its first step
            self._steps[optimizer] = 0
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
        if any(parameter in self._owner for parameter in parameters_of(optimizer)):
            raise RecipeError(
                f"--parallel zero1 cannot shard {type(optimizer).__name__}, which does not update each "
                "parameter independently",
                fix="use an optimizer that does, such as Adam or SGD, or --parallel ddp",
            )

    def _after_step(self, optimizer: Optimizer, *_: Any) -> None:
        self._exchange(optimizer)
        self._steps[optimizer] = steps = self._steps[optimizer] + 1
        is_power_of_two = steps & (steps - 1) == 0  # a number may be equal at first, as those of D-Adaptation
        if is_power_of_two and any(parameter in self._owner for parameter in parameters_of(optimizer)):
            self._compare_numbers(optimizer)

    def _compare_numbers(self, optimizer: Optimizer) -> None:
        """RecipeError on all ranks if the numbers of its groups differ among them."""
        named = _numbers(optimizer)
        mine = torch.tensor([each for _, each in named], dtype=torch.float64).nan_to_num()
        highest = torch.cat([mine, -mine]).to(self.device)
        waits.wait(dist.all_reduce(highest, op=dist.ReduceOp.MAX, async_op=True), highest.device)
        most, least = highest.cpu().chunk(2)
        for (name, _), high, low in zip(named, most.tolist(), (-least).tolist(), strict=True):
            if not math.isclose(high, low, rel_tol=_ROUNDING):
                raise RecipeError(
                    f"--parallel zero1 cannot shard {type(optimizer).__name__}: its {name} is {low:g} on one "
                    f"rank and {high:g} on another, as if it did not update each parameter independently",
                    fix="use an optimizer that does, such as Adam or SGD, or --parallel ddp; if the program "
                    f"sets {name}, set the same on every rank",
                )

    def _exchange(self, optimizer: Optimizer) -> None:
        pending: deque[tuple[Any, torch.Tensor, Any]] = deque()
        for owner in range(self.layout.data_size):
            owned = (p.detach() for p in parameters_of(optimizer) if self._owner.get(p) == owner)
            for bucket in buckets(owned):
                if len(pending) == _IN_FLIGHT:
                    _receive(*pending.popleft())
                flat = torch.cat([p.reshape(-1) for p in bucket])
                pending.append((bucket, flat, dist.broadcast(flat, src=owner, async_op=True)))
        for each in pending:
            _receive(*each)


def _numbers(optimizer: Optimizer) -> list[tuple[str, float]]:
    """Those of its groups that the optimizer has on every rank: its arguments, and what it makes of them."""
    return [
        (name, float(found))
        for group in optimizer.param_groups
        for name in sorted(optimizer.defaults)
        if isinstance(found := group.get(name), int | float)
        or (isinstance(found, torch.Tensor) and found.numel() == 1)
    ]


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
