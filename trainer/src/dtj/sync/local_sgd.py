"""Ranks train alone for some steps, then bring their models together: one message every K steps.

    local:K      average the weights. Stich, "Local SGD Converges Fast and Communicates Little" (2019)
    postlocal:K  the first half of the steps synchronously, then local:K. Lin et al., "Don't Use Large
                 Mini-Batches, Use Local SGD" (2020)
    diloco:K     what the ranks changed on average is the gradient of an outer optimizer with
                 Nesterov momentum. Douillard et al., "DiLoCo" (2023); its rate and momentum

Between two sync points ranks differ: checkpoints wait for the next one, a stop brings it forward, and
`run.evaluate` scores each rank's own model on its share. Momentum stays with each rank; after a restart all
of them begin with rank 0's.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from dtj.parallel.average import average
from dtj.parallel.layout import Layout
from dtj.parallel.strategy import Replicated, WeightedLoss

_OUTER_RATE, _OUTER_MOMENTUM = 0.7, 0.9


class LocalSGD(Replicated):
    """Averages weights every `every` steps; before the part `alone_from` of all steps, gradients at each."""

    same_optimizer_state = False

    def __init__(self, layout: Layout, device: torch.device, *, every: int, alone_from: float = 0.0) -> None:
        super().__init__(layout, device)
        self.every = every
        self._alone_from = alone_from
        self._synced = -1  # last step after which all ranks had the same weights

    def start(self, step: int, total_steps: int) -> None:
        super().start(step, total_steps)
        self._synced = step

    def accumulate(self, weighted_loss: WeightedLoss, micro_batches: Sequence[Any]) -> torch.Tensor:
        total = super().accumulate(weighted_loss, micro_batches)
        if self._is_synchronous():
            average((p.grad for p in self.weights if p.grad is not None), None)
        return total

    def after_step(self, step: int, *, force: bool = False) -> None:
        if self._is_synchronous():
            self._synced = step
        elif (force or step % self.every == 0) and not self.in_sync(step):
            self.synchronize()
            self._synced = step
        super().after_step(step)

    def in_sync(self, step: int) -> bool:
        return self._synced == step

    def synchronize(self) -> None:
        """All ranks have the same weights afterwards."""
        average((p.detach() for p in self.weights), None)

    def _is_synchronous(self) -> bool:
        return self.step < self._alone_from * self.total_steps


class DiLoCo(LocalSGD):
    """A sync point is a step of an outer optimizer from the weights of the last one."""

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
        """The first time it is from the present weights, also where a run without DiLoCo has left them."""
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
        """Of the outer optimizer; the weights themselves are the model's, since this is a sync point."""
        return self._outer.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._outer.load_state_dict(state)
