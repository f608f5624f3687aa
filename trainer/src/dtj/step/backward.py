"""Forward and backward over this rank's micro-batches; gradients become the mean over the global batch.

Why not simply average over ranks and micro-batches: if they differ in size (a smaller last batch, a size of
micro-batches that does not divide the batch), the mean of means is not the mean. Each loss is weighted by the
samples of its micro-batch, so any number of ranks and any micro-batch size give the same gradients, up to
rounding. This holds for losses that are a mean over samples, not for a mean over tokens of padded samples.
"""

from collections.abc import Callable
from typing import Any

import torch

from dtj.data.feed import Batch
from dtj.data.splitter import MicroBatch
from dtj.errors import RecipeError
from dtj.parallel.strategy import Strategy
from dtj.step.precision import Precision, true_on_all_ranks

LossOf = Callable[[Any], torch.Tensor]


def backward(loss_of: LossOf, batch: Batch, *, strategy: Strategy, precision: Precision) -> torch.Tensor:
    """Add the gradients of the mean loss over the global batch to every parameter's `.grad`.

    loss_of  micro-batch -> () tensor, the *mean* loss of its samples
    Strategies average gradients over the ranks with different samples. Here they must be summed, since the
    weights of all micro-batches add up to 1; so each loss is multiplied by the number of those ranks.
    Returns () on the device, detached: its mean over the ranks is the loss of the global batch.
    """
    scale = precision.scale
    gradient_scale = strategy.layout.data_size * scale

    def weighted_loss(micro_batch: MicroBatch) -> torch.Tensor:
        with precision.autocast():
            loss = _checked(loss_of(batch.fetch(micro_batch)))
        loss = loss.to(strategy.device, torch.promote_types(loss.dtype, torch.float32))
        factor = micro_batch.weight * gradient_scale
        return loss * factor if factor != 1.0 else loss  # equal parts need no weight

    if precision.scales:
        precision.rescale(strategy.parameters)
    total = strategy.accumulate(weighted_loss, batch.micro_batches)
    if not precision.scales:
        return total
    precision.unscale(strategy.parameters, all_finite=true_on_all_ranks)
    return total / scale


def warm_up(loss_of: LossOf, batch: Batch, *, strategy: Strategy, precision: Precision) -> None:
    """Run one backward pass and discard its result, before the first step with new process groups.

    DDP rebuilds its buckets after its first backward. Without this, a resumed or healed run would do one step
    with the first buckets where an uninterrupted run used the second ones, and with three or more ranks their
    sums round differently.
    """

    def loss(micro_batch: MicroBatch) -> torch.Tensor:
        with precision.autocast():  # as in a step: the same memory, kernels and compiled graphs
            return _checked(loss_of(batch.fetch(micro_batch)))

    before = Rollback(strategy)
    with strategy.warming_up():
        strategy.accumulate(loss, batch.micro_batches[:1])
    before.restore()


class Rollback:
    """Copies of what a backward pass changes: buffers, and gradients of earlier passes."""

    def __init__(self, strategy: Strategy) -> None:
        self._buffers = [(b, b.clone()) for b in strategy.buffers]
        gradients = [(p, p.grad) for p in strategy.parameters]
        self._gradients = [(p, None if g is None else g.clone()) for p, g in gradients]

    def restore(self) -> None:
        """Undo a backward pass, complete or interrupted."""
        with torch.no_grad():
            for buffer, value in self._buffers:
                buffer.copy_(value)
        for parameter, gradient in self._gradients:
            parameter.grad = gradient


def _checked(loss: Any) -> torch.Tensor:
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        given = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, torch.Tensor) else repr(loss)
        raise RecipeError(
            f"the loss function returned {given}, expected a tensor with one element",
            fix="return the mean loss of the micro-batch, e.g. F.cross_entropy(model(mb.x), mb.y)",
        )
    return loss
