"""EMA: the exponential moving average of a model's weights, under every strategy."""

import contextlib
from collections.abc import Iterator

import torch
from torch import nn

from dtj.errors import RecipeError
from dtj.parallel.names import named_parameters
from dtj.parallel.strategy import unwrap


class EMA:
    """The average of a model's trained weights over the last steps. A part for `run.state`.

    model  as `run.parallel` returned it; the averages are sharded as its weights are
    decay  of the older steps, at least 0 and below 1: the average covers about the last 1 / (1 - decay)
           steps. RecipeError for another number
    A layer that is unfrozen later has an average from the next `update` on, and in checkpoints from then on.
    Buffers are not averaged. Under --sync local, postlocal and diloco each rank averages its own weights, and
    a checkpoint has those of rank 0.
    """

    def __init__(self, model: nn.Module, *, decay: float = 0.999) -> None:
        if not 0 <= decay < 1:
            raise RecipeError(
                f"dtj.EMA got decay={decay}, expected at least 0 and below 1",
                fix="use for example decay=0.999",
            )
        self._decay = decay
        self._parameters = dict(named_parameters(unwrap(model)))
        self._weights = {name: parameter.detach() for name, parameter in self._parameters.items()}
        self._averages: dict[str, torch.Tensor] = {}
        self._begin()

    def update(self) -> None:
        """Move the averages towards the present weights; to be called after each step of the optimizer."""
        self._begin()
        for name, average in self._averages.items():
            average.lerp_(self._weights[name], 1 - self._decay)

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """Context in which the model has the averages as its weights, e.g. for `run.evaluate`."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def state_dict(self) -> dict[str, torch.Tensor]:
        """The averages by the names of the parameters."""
        return dict(self._averages)

    def shard_templates(self) -> dict[str, torch.Tensor]:
        """How an average is sharded, also that of a layer that the model does not train yet."""
        return self._weights

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        for name in (each for each in self._weights if each in state):
            self._averages.setdefault(name, self._weights[name].clone())
        for name, average in self._averages.items():
            average.copy_(state[name])

    def _begin(self) -> None:
        """An average of a layer that is trained now begins with the present weight."""
        for name, parameter in self._parameters.items():
            if parameter.requires_grad and name not in self._averages:
                self._averages[name] = self._weights[name].clone()

    def _swap(self) -> None:
        """Exchange weights and averages, one tensor at a time to need little memory."""
        for name, average in self._averages.items():
            kept = average.clone()
            average.copy_(self._weights[name])
            self._weights[name].copy_(kept)
