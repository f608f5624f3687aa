"""Recipe: the parts from which the built-in loop builds a run. Does not import torch."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dtj.errors import RecipeError, whole

if TYPE_CHECKING:
    import torch
    from torch import nn
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What to train: the parts that `loop.train` combines. Parts that depend on the device are factories.

    model         () -> module on the CPU; the same on every rank. See `run.parallel` for large models
    data          map-style data set or stream; micro-batches have the structure of its items, pairs are
                  available as mb.x, mb.y
    loss          (model, micro-batch) -> () tensor, the mean loss of its samples; or (mean loss, what it is a
                  mean over), e.g. tokens
    optimizer     parameters -> optimizer
    global_batch  samples per step over all ranks
    epochs        passes over the data
    steps         instead of epochs: total number of global batches, e.g. for a stream without a length
    tokens        tokens per sample, if samples are text: the log then shows tokens per second
    clip          maximum norm of the gradients; the norm before clipping is logged. None: no clipping
    schedule      (optimizer, total steps) -> learning rate scheduler, stepped once per step; None: constant
    held_out      data set to evaluate on after each epoch and after the last step; None: no evaluation
    score         (model, micro-batch of k samples) -> (k,) tensor; its mean over held_out is logged
    best          "highest" or "lowest": also keep the checkpoint with that score, besides the newest ones
    metric        name under which the mean score is logged
    eval_batch    samples per forward pass of a rank in the evaluation; None: as in training
    sample        model -> text to print at the end, to show what it has learned; called on every rank
    seed          of weights, data order and augmentation
    """

    model: "Callable[[], nn.Module]"
    data: Any
    loss: "Callable[[nn.Module, Any], torch.Tensor | tuple[torch.Tensor, torch.Tensor | int]]"
    optimizer: "Callable[[Iterable[nn.Parameter]], Optimizer]"
    global_batch: int
    epochs: int | None = None
    steps: int | None = None
    tokens: int | None = None
    clip: float | None = None
    schedule: "Callable[[Optimizer, int], LRScheduler] | None" = None
    held_out: Any = None
    score: "Callable[[nn.Module, Any], torch.Tensor] | None" = None
    best: str | None = None
    metric: str = "accuracy"
    eval_batch: int | None = None
    sample: "Callable[[nn.Module], str] | None" = None
    seed: int = 0

    def __post_init__(self) -> None:
        given = {name: n for name, n in (("epochs", self.epochs), ("steps", self.steps)) if n is not None}
        if len(given) != 1:
            raise RecipeError(
                f"the recipe sets {' and '.join(given) or 'neither epochs nor steps'}",
                fix="set exactly one of them, e.g. Recipe(epochs=5, ...)",
            )
        for name, count in given.items():
            whole(count, f"{name} is", least=1, fix=f"correct {name}")
        if self.held_out is not None and self.score is None:
            raise RecipeError(
                "the recipe has held_out data but no score",
                fix="set Recipe(score=...) to a function that returns one value per sample",
            )
        if self.best and self.held_out is None:
            raise RecipeError(
                f"the recipe sets best={self.best!r} but has no held_out data to score",
                fix="set Recipe(held_out=..., score=...), or leave best out",
            )
        if self.best not in {None, "highest", "lowest"}:
            raise RecipeError(
                f"best is {self.best!r}, expected 'highest' or 'lowest'", fix="correct best, or leave it out"
            )

    def count_steps(self, data: Any) -> int:
        """Total number of steps; data: the feed that `run.data` returned."""
        return self.steps or (self.epochs or 0) * int(data.steps_per_epoch)
