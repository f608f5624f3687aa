"""Bounded staleness: a step applies the mean gradient of K steps ago, so a slow rank delays the others less.

    step t   compute own gradients, start to average them, apply the average that was started at step t - K

All ranks apply the same averages in the same order and stay equal bit for bit. No rank gets more than K steps
ahead of the slowest, and a message has K steps of time to arrive. The first K steps of a run change nothing,
and training needs a smaller learning rate than without delay: Ho et al., "More Effective Distributed ML via a
Stale Synchronous Parallel Parameter Server" (2013).
"""

from collections import deque
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from dtj.errors import RecipeError
from dtj.parallel.average import unflatten
from dtj.parallel.layout import Layout
from dtj.parallel.strategy import Replicated
from dtj.ranks import waits


class Stale(Replicated):
    """Applies averages of gradients `delay` steps late.

    _pending  oldest first: (vector, handle of its all-reduce; None after a restore). The vector is the sum
              over the ranks of all gradients, each times its rank's weight; its last element: of the weights
    """

    def __init__(self, layout: Layout, device: torch.device, *, delay: int) -> None:
        super().__init__(layout, device)
        self.max_steps_ahead = delay
        self.extra = self
        self._pending: deque[tuple[torch.Tensor, Any]] = deque()
        self._exchanged_in = -1  # the last step with an exchange
        self._count: torch.Tensor | None = None  # of the present pass: the weight of this rank

    def sum_of_counts(self, mine: torch.Tensor) -> torch.Tensor:
        """As if each rank had as many. That of all ranks is sent with the gradients, and comes as late."""
        self._count = mine
        return mine * self.layout.data_size

    @torch.no_grad()
    def _exchange(self) -> None:
        share = 1 / self.layout.data_size if self._count is None else self._count
        # A count needs float32; without one, half the bytes are sent if the model has half precision.
        kind = self.weights[0].dtype if self._count is None else torch.float32
        one = torch.ones(1, dtype=kind, device=self.device)
        own = torch.cat([*(_gradient(p).reshape(-1) for p in self.weights), one]).mul_(share)
        self._count = None
        self._pending.append((own, dist.all_reduce(own, async_op=True)))
        if len(self._pending) <= self.max_steps_ahead:
            for weight in self.weights:  # optimizers skip parameters without a gradient
                weight.grad = None
            return
        total, work = self._pending.popleft()
        if work is not None:
            waits.wait(work, total.device)
        total.div_(torch.where(total[-1] > 0, total[-1].clone(), 1.0))
        unflatten(total, [_gradient(p) for p in self.weights])

    def end_backward(self) -> None:
        if self._exchanged_in == self.step:
            raise RecipeError(
                "run.backward was called twice in a step: with --sync stale each optimizer would get the "
                "gradients of the other pass",
                fix="add up the losses for one call, or use --parallel ddp without --sync stale",
            )
        self._exchanged_in = self.step
        self._exchange()

    def state_dict(self) -> dict[str, Any]:
        """The sums that are not applied yet; waits for them."""
        for total, work in self._pending:
            if work is not None:
                waits.wait(work, total.device)
        return {"sums": [total for total, _ in self._pending]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Also of a run with a larger delay: the oldest sums are then dropped, as is their delay."""
        newest = state["sums"][-self.max_steps_ahead :]
        self._pending = deque((total.to(self.device), None) for total in newest)


def _gradient(parameter: nn.Parameter) -> torch.Tensor:
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    return parameter.grad
