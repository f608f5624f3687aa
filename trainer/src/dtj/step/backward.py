"""Forward and backward over this rank's micro-batches; gradients become the mean over the global batch.

Why not simply average over ranks and micro-batches: if they differ in size (a smaller last batch, a size of
micro-batches that does not divide the batch, texts of different lengths), the mean of means is not the mean.
Each loss is weighted by what it is a mean over: its samples, or the `count` that comes with it, e.g. tokens.
So any number of ranks and any micro-batch size give the same gradients, up to rounding.

    closure      the loss is a function of the micro-batch, which may be called again after the loss of a rank
    plain form   `for mb in batch: run.backward(loss)`: the user calls the model
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from dtj.data.device_copy import queued_copy
from dtj.data.feed import Batch
from dtj.data.splitter import MicroBatch
from dtj.errors import RecipeError
from dtj.parallel.strategy import Strategy, local_part
from dtj.step.precision import Precision, true_on_all_ranks

Count = torch.Tensor | int
_NO_INDICES = np.empty(0, dtype=np.int64)
LossOf = Callable[[Any], torch.Tensor | tuple[torch.Tensor, Count]]


class Weighting:
    """Weights the losses of one backward pass over a batch, and makes its gradients the mean.

    Strategies average gradients over the ranks with different samples. Here they must be summed, since the
    weights of all micro-batches add up to 1; so each loss is multiplied by the number of those ranks. The sum
    of all counts is only known after the last one: until then they are divided by the samples, or by the
    batches, whose number is the same on every rank, and the gradients are corrected at the end.
    """

    def __init__(self, batch: Batch, *, strategy: Strategy, precision: Precision) -> None:
        self._strategy, self._precision = strategy, precision
        self._scale = precision.scale
        self._divisor = batch.divisor
        # By the number of the micro-batch: to infer shapes, a pipeline calls the loss of the first one twice.
        self._counts: dict[int, torch.Tensor] = {}
        self._weighted: set[int] = set()
        self._earlier: dict[torch.nn.Parameter, torch.Tensor] = {}
        # Only the last stage of a pipeline sees the counts.
        self._may_count = strategy.pipeline_micro_batches is not None
        strategy.begin_backward()
        if precision.scales or self._may_count:
            self._set_earlier_aside()

    def weighted(self, loss: Any, count: Count | None, micro_batch: MicroBatch) -> torch.Tensor:
        """The loss, (), of which backward is called; RecipeError if it is not one number."""
        given = _checked(loss)
        mean, device = given, self._strategy.device
        if given.dtype is not torch.float32 or given.device != device:
            mean = given.to(device, torch.promote_types(given.dtype, torch.float32))
        scale = self._strategy.layout.data_size * self._scale
        self._weighted.add(micro_batch.number)
        if count is not None:
            counted = self._counted(count, micro_batch)
            mean = torch.where(counted > 0, mean, 0.0)  # the mean of no tokens is NaN
            return mean * (counted * (scale / self._divisor))
        if self._counts:
            raise _mixed()
        factor = micro_batch.weight * scale
        return mean * factor if factor != 1.0 else mean  # equal parts need no weight

    def finish(self, total: torch.Tensor) -> torch.Tensor:
        """Called after the last backward. total: sum of the weighted losses; returns this rank's loss."""
        strategy, precision = self._strategy, self._precision
        if self._counts or self._may_count:
            total = total * self._correct_by_counts()
        strategy.end_backward()
        if precision.scales:
            agree = bool if strategy.steps_alone() else true_on_all_ranks
            precision.unscale(strategy.parameters, all_finite=agree)
            total = total / self._scale
        for parameter, gradient in self._earlier.items():
            parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)
        precision.drop_overflowed()
        return total

    def _counted(self, count: Count, micro_batch: MicroBatch) -> torch.Tensor:
        if self._strategy.reuses_gradients:
            raise RecipeError(
                "a loss came with a count, which does not work with --compress powersgd and topk: they add "
                "what they did not send to the next gradient, whose count is another one",
                fix="use --compress bf16, or leave the count out",
            )
        if not self._counts:
            self._set_earlier_aside()
        # A number is in host memory, and an ordinary copy of it would wait for the device.
        found = queued_copy(torch.as_tensor(count).detach(), self._strategy.device, torch.float32)
        if found.numel() != 1:
            raise RecipeError(
                f"the count of a loss has shape {tuple(found.shape)}, expected one number",
                fix="pass how many items the loss is a mean over, e.g. (labels != -100).sum()",
            )
        found = found.reshape(()) if micro_batch.weight else torch.zeros_like(found.reshape(()))
        self._counts[micro_batch.number] = found
        if self._counts.keys() != self._weighted:
            raise _mixed()
        return found

    def _correct_by_counts(self) -> torch.Tensor:
        """Divide the gradients by the counts of all ranks instead of the samples; the factor, ()."""
        mine = sum(self._counts.values(), torch.zeros((), device=self._strategy.device))
        total = self._strategy.sum_of_counts(mine)
        factor = torch.where(total > 0, self._divisor / total, 1.0)
        for parameter in self._strategy.parameters:
            if parameter.grad is not None:
                local = local_part(parameter.grad)
                local.mul_(factor.to(local.device))
        return factor

    def _set_earlier_aside(self) -> None:
        """Keep gradients of earlier passes as they are: neither the scale nor the counts concern them."""
        for parameter in self._strategy.parameters:
            if parameter.grad is not None:
                self._earlier[parameter], parameter.grad = parameter.grad.clone(), None


def backward(loss_of: LossOf, batch: Batch, *, strategy: Strategy, precision: Precision) -> torch.Tensor:
    """Add the gradients of the mean loss over the global batch to every parameter's `.grad`.

    loss_of  micro-batch -> () tensor, the *mean* loss of its samples; or (mean loss, what it is a mean over)
    Returns () on the device, detached: its mean over the ranks is the loss of the global batch. With counts
    and --sync local or stale it is the loss of this rank's tokens, and 0 if it had none.
    """
    weighting = Weighting(batch, strategy=strategy, precision=precision)

    def weighted_loss(micro_batch: MicroBatch) -> torch.Tensor:
        with precision.autocast():
            loss, count = _with_count(loss_of(batch.fetch(micro_batch)))
        return weighting.weighted(loss, count, micro_batch)

    return weighting.finish(strategy.accumulate(weighted_loss, batch.micro_batches))


@dataclass(eq=False)
class PlainForm:
    """`for mb in batch: ...; run.backward(loss)`. Forward runs in autocast; the last loss synchronizes.

    begins    called before the first micro-batch of a pass
    counting  samples -> context for forward and backward of a pass
    """

    strategy: Strategy
    precision: Precision
    begins: Callable[[], None]
    counting: Callable[[int], contextlib.AbstractContextManager[None]]

    def __post_init__(self) -> None:
        self._batch: Batch | None = None  # of the present pass
        self._weighting: Weighting | None = None  # from its first loss on
        self._micro_batch: MicroBatch | None = None  # whose loss is awaited
        self._is_last = False
        self._losses = 0  # of the present pass
        self._forward = contextlib.ExitStack()
        self._total = torch.zeros((), device=self.strategy.device)

    def over(self, batch: Batch) -> Iterator[Any]:
        """The micro-batches of a step, on this rank's device."""
        if not batch.micro_batches:
            return
        had_gradients = self._has_gradients()
        self._begin(batch)
        *_, last = batch.micro_batches
        with self.counting(batch.samples):
            for micro_batch in batch.micro_batches:
                self._is_last = micro_batch is last
                with contextlib.nullcontext() if self._is_last else self.strategy.without_sync():
                    data = batch.fetch(micro_batch)
                    self._micro_batch = micro_batch
                    with self._forward:
                        self._forward.enter_context(self.precision.autocast())
                        yield data
                    self._micro_batch = None
        self.check_complete()
        if not self._losses and not had_gradients and self._has_gradients():
            raise RecipeError(
                "the gradients of a step are of loss.backward(), which does not weight the micro-batches",
                fix="call run.backward(loss) instead of loss.backward()",
            )

    def check_complete(self) -> None:
        """RecipeError if the last pass had some losses, but not all: its gradients are not averaged."""
        wanted = len(self._batch.micro_batches) if self._batch else 0
        if 0 < self._losses < wanted:
            raise RecipeError(
                f"run.backward was called for {self._losses} of {wanted} micro-batches of a step",
                fix="call it for each of them; to ignore one, multiply its loss by 0",
            )

    def backward(self, loss: Any, count: Count | None, batch: Batch | None) -> torch.Tensor:
        """Backward of one micro-batch, or of a step without data (batch). Returns the sum so far, ()."""
        if batch is not None and not batch.micro_batches:
            self._begin(batch)
            self._micro_batch = MicroBatch(0, _NO_INDICES, 1 / self.strategy.layout.data_size)
            self._is_last = True
        if self._micro_batch is None or self._batch is None:
            raise RecipeError(
                "run.backward got a loss, but no micro-batch is waiting for one",
                fix="call it once for each micro-batch, in `for mb in batch:`; add up several losses first",
            )
        self._forward.close()
        if self._weighting is None:  # not earlier: a pass without a loss leaves the gradients alone
            self._weighting = Weighting(self._batch, strategy=self.strategy, precision=self.precision)
        weighted = self._weighting.weighted(loss, count, self._micro_batch)
        weighted.backward()  # type: ignore[no-untyped-call]
        self._total = self._total + weighted.detach()
        self._micro_batch = None
        self._losses += 1
        if self._is_last:
            self._total = self._weighting.finish(self._total)
        return self._total

    def _has_gradients(self) -> bool:
        return any(parameter.grad is not None for parameter in self.strategy.parameters)

    def _begin(self, batch: Batch) -> None:
        if self.strategy.pipeline_micro_batches is not None:
            raise RecipeError(
                f"--parallel {self.strategy.layout.strategy} runs forward and backward by its own schedule",
                fix="pass a function: run.backward(lambda mb: loss(model, mb), batch)",
            )
        self._losses = 0
        self.begins()
        self._batch, self._weighting = batch, None
        self._total = torch.zeros((), device=self.strategy.device)


def warm_up(
    loss_of: LossOf,
    batch: Batch,
    *,
    strategy: Strategy,
    precision: Precision,
    moving: Sequence[torch.nn.Parameter] | None = None,
) -> None:
    """Run one backward pass and discard its result, before the first step with new process groups.

    DDP rebuilds its buckets after its first backward. Without this, a resumed or healed run would do one step
    with the first buckets where an uninterrupted run used the second ones, and with three or more ranks their
    sums round differently.

    moving  see Rollback
    """

    def loss(micro_batch: MicroBatch) -> torch.Tensor:
        with precision.autocast():  # as in a step: the same memory, kernels and compiled graphs
            return _checked(_with_count(loss_of(batch.fetch(micro_batch)))[0])

    before = Rollback(strategy, moving)
    with strategy.warming_up():
        strategy.accumulate(loss, batch.micro_batches[:1])
    before.restore()


class Rollback:
    """Copies of what a pass changes: buffers, gradients of earlier passes, frozen parameters that move, and
    what a strategy remembers.

    moving  see Moving; None: unknown. Then all frozen parameters are copied, unless they take more memory
            than the trained ones: a momentum encoder does not, and a large model may not fit in twice
    """

    def __init__(self, strategy: Strategy, moving: Sequence[torch.nn.Parameter] | None = None) -> None:
        if moving is None:
            frozen, trained = _frozen(strategy), [p for p in strategy.parameters if p.requires_grad]
            moving = frozen if sum(p.nbytes for p in frozen) <= sum(p.nbytes for p in trained) else ()
        self._frozen = [(p, p._version, p.detach().to("cpu", copy=True)) for p in moving]
        self._undo = strategy.undo()
        self._buffers = [(b, b.clone()) for b in strategy.buffers]
        gradients = [(p, p.grad) for p in strategy.parameters]
        self._gradients = [(p, None if g is None else g.clone()) for p, g in gradients]

    def restore(self) -> None:
        """Undo a backward pass, complete or interrupted."""
        self._undo()
        with torch.no_grad():
            for buffer, value in self._buffers:
                buffer.copy_(value)
            for frozen, version, value in self._frozen:
                if frozen._version != version:
                    frozen.copy_(value)
        for parameter, gradient in self._gradients:
            parameter.grad = gradient


class Moving:
    """The frozen parameters that forward changes, as those of a momentum encoder.

    known  those of all passes yet; None before the first one
    """

    known: list[torch.nn.Parameter] | None = None

    @contextlib.contextmanager
    def watched(self, strategy: Strategy) -> Iterator[None]:
        """Context for a pass."""
        before = [(p, p._version) for p in _frozen(strategy)]
        yield
        moved = [p for p, version in before if p._version != version]
        self.known = list({*(self.known or ()), *moved})


def _frozen(strategy: Strategy) -> list[torch.nn.Parameter]:
    return [p for p in strategy.parameters if not p.requires_grad and not p.is_inference()]


def _with_count(found: Any) -> tuple[Any, Count | None]:
    return found if isinstance(found, tuple) and len(found) == 2 else (found, None)


def _checked(loss: Any) -> torch.Tensor:
    """The loss, (); RecipeError if it is not one number."""
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        given = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, torch.Tensor) else repr(loss)
        raise RecipeError(
            f"the loss function returned {given}, expected a tensor with one element",
            fix="return the mean loss of the micro-batch, e.g. F.cross_entropy(model(mb.x), mb.y)",
        )
    return loss.reshape(()) if loss.ndim else loss


def _mixed() -> RecipeError:
    return RecipeError(
        "some losses of a step came with a count, others without one", fix="pass a count with each of them"
    )
