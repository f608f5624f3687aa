"""Each rank trains alone for K steps, then all synchronize their models: communication only every K steps.

    local:K      average the weights. Stich, "Local SGD Converges Fast and Communicates Little" (2019)
    postlocal:K  the first half of the steps synchronously, then local:K. Lin et al., "Don't Use Large
                 Mini-Batches, Use Local SGD" (2020)
    diloco:K     the mean change of the weights is the gradient of an outer optimizer with Nesterov
                 momentum. Douillard et al., "DiLoCo" (2023), with its learning rate and momentum

Between two sync points ranks differ: a checkpoint waits for the next one, a stop synchronizes early, and
`run.evaluate` scores each rank's own model on that rank's samples. Each rank has its own momentum and loss
scale of fp16; after a restart all start with rank 0's.
"""

import math
from typing import Any

import torch
from torch import nn

from dtj.parallel.average import average, average_gradients
from dtj.parallel.layout import Layout
from dtj.parallel.strategy import Replicated

_OUTER_RATE, _OUTER_MOMENTUM = 0.7, 0.9


class LocalSGD(Replicated):
    """Averages weights every `every` steps.

    alone_from  fraction of all steps before which gradients are averaged in each step instead. A later loop
                with more steps does not begin with such steps again: the ranks' momenta differ by then
    """

    same_optimizer_state = False

    def __init__(self, layout: Layout, device: torch.device, *, every: int, alone_from: float = 0.0) -> None:
        super().__init__(layout, device)
        self.every = every
        self._alone_from = alone_from
        self._alone_since: float = math.inf  # the step after which gradients are not averaged
        self._synced = -1  # last step after which all ranks had the same weights

    def start(self, step: int, total_steps: int) -> None:
        super().start(step, total_steps)
        self._synced = step
        if step < self._alone_since:
            self._alone_since = self._alone_from * total_steps

    def sum_of_counts(self, mine: torch.Tensor) -> torch.Tensor:
        """In a step alone, as if each rank had as many: gradients become the mean over this rank's own."""
        return mine * self.layout.data_size if self.steps_alone() else super().sum_of_counts(mine)

    def steps_alone(self) -> bool:
        return self.step >= self._alone_since

    def end_backward(self) -> None:
        if not self.steps_alone():
            average_gradients(self.weights, None)

    def after_step(self, step: int, *, force: bool = False) -> None:
        if not self.steps_alone():
            self._synced = step
        elif (force or step % self.every == 0) and not self.in_sync(step):
            self.synchronize()
            self._synced = step
        super().after_step(step)

    def in_sync(self, step: int) -> bool:
        return self._synced == step

    def synchronize(self) -> None:
        """Make the weights of all ranks equal."""
        average((p.detach() for p in self.weights), None)


class DiLoCo(LocalSGD):
    """At a sync point, an outer optimizer does a step from the weights of the previous sync point."""

    def wrap(self, model: nn.Module, *, is_healing: bool = False) -> nn.Module:
        model = super().wrap(model, is_healing=is_healing)
        self._synced_at = [p.detach().clone() for p in self.weights]
        self._outer = torch.optim.SGD(
            self._synced_at, lr=_OUTER_RATE, momentum=_OUTER_MOMENTUM, nesterov=True
        )
        self.extra = self
        return model

    @torch.no_grad()
    def start(self, step: int, total_steps: int) -> None:
        """The first outer step starts from the current weights, also those of a checkpoint without DiLoCo."""
        if self._synced < 0:
            for was, now in zip(self._synced_at, self.weights, strict=True):
                was.copy_(now)
        super().start(step, total_steps)

    @torch.no_grad()
    def synchronize(self) -> None:
        changes = [was - now for was, now in zip(self._synced_at, self.weights, strict=True)]
        average(changes, None)
        for was, change in zip(self._synced_at, changes, strict=True):
            was.grad = change
        self._outer.step()
        self._outer.zero_grad()
        for now, was in zip(self.weights, self._synced_at, strict=True):
            now.copy_(was)

    def state_dict(self) -> dict[str, Any]:
        """State of the outer optimizer. Its weights are the model's, since checkpoints are at sync points."""
        return self._outer.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._outer.load_state_dict(state)
