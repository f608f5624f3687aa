"""What to train, as the parts of which the built-in loop makes a run. Imports no torch."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dtj.errors import RecipeError

if TYPE_CHECKING:
    import torch
    from torch import nn
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What to train, as parts that `loop.train` puts together; factories where the device matters.

    model         () -> module, on the CPU; every rank builds the same one
    data          map-style data set or stream; micro-batches have the structure of its items, pairs come as
                  mb.x, mb.y
    loss          (model, micro-batch) -> (), the mean loss of its samples
    optimizer     parameters -> optimizer
    global_batch  samples of one step over all ranks
    epochs        passes over the data
    steps         in place of epochs: global batches in all, for a stream that has no length
    tokens        of one sample, where it is text: the log then has tokens a second
    clip          largest norm that the gradients of a step may have, which is then logged as it was before;
                  None lets them be
    schedule      (optimizer, steps in all) -> schedule, stepped once a step; None keeps the rate
    held_out      data set to evaluate on after each epoch; None evaluates nothing
    score         (model, micro-batch of k) -> (k,), averaged over held_out
    best          "highest" or "lowest": the checkpoint with that score is kept besides the newest ones
    metric        name under which that average is logged
    sample        model -> text that shows what it has learned, printed at the end; called on every rank
    seed          of weights, data order and augmentation
    """

    model: "Callable[[], nn.Module]"
    data: Any
    loss: "Callable[[nn.Module, Any], torch.Tensor]"
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
    sample: "Callable[[nn.Module], str] | None" = None
    seed: int = 0

    def __post_init__(self) -> None:
        given = {name: n for name, n in (("epochs", self.epochs), ("steps", self.steps)) if n is not None}
        if len(given) != 1:
            raise RecipeError(
                f"the recipe gives {' and '.join(given) or 'neither epochs nor steps'}",
                fix="give one of them, e.g. Recipe(epochs=5, ...)",
            )
        for name, count in given.items():
            if not hasattr(count, "__index__") or count < 1:
                raise RecipeError(
                    f"{name} is {count}, expected a whole number of at least 1", fix=f"correct {name}"
                )
        if self.held_out is not None and self.score is None:
            raise RecipeError(
                "the recipe has held_out data but no score", fix="give Recipe(score=...), one value a sample"
            )
        if self.best and self.held_out is None:
            raise RecipeError(
                f"the recipe keeps the {self.best} score but has no held_out data to score",
                fix="give Recipe(held_out=..., score=...), or leave best out",
            )
        if self.best not in {None, "highest", "lowest"}:
            raise RecipeError(f"best is {self.best!r}", fix="make it 'highest' or 'lowest', or leave it out")

    def count_steps(self, data: Any) -> int:
        """Global batches of the whole training on the feed of `run.data`."""
        return self.steps or (self.epochs or 0) * int(data.steps_per_epoch)
