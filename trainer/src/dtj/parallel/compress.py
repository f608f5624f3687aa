"""Compress gradients for the network, as DDP communication hooks.

    bf16, fp16     half the bytes; torch's own hooks
    powersgd[:R]   each matrix as the product of two thin matrices of rank R (default 4). Vogels et al.,
                   "PowerSGD" (2019). torch's own hook hangs on gloo; this one runs on any backend
    topk[:P]       only the P percent (default 1) with the largest magnitude, and their indices. Aji and
                   Heafield, "Sparse Communication for Distributed Gradient Descent" (2017)

What the last two leave out is kept on each rank and added to the next gradient (error feedback): it is sent
later, not lost. This memory takes as much as the gradients, in a pass twice as much. It is empty after a
restart.

    pass -> optimizer step    the optimizer used what was sent, so the rest is owed to its next step
    pass -> anything else     the gradient was discarded, as that of a critic in the pass of its generator, or
                              the pass is repeated after the loss of a rank: its rest is discarded, too
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from dtj.parallel.average import average, unflatten
from dtj.parallel.strategy import parameters_of
from dtj.ranks import waits

Future = torch.futures.Future[torch.Tensor]
_as_they_are: Callable[[Any, Any], Future] = default_hooks.allreduce_hook


class Hook:
    """One of torch's hooks, and the base of the others. While `paused`, gradients are not compressed."""

    def __init__(self, hook: Callable[[Any, Any], Future] = _as_they_are) -> None:
        """The default sends gradients as they are, as DDP does without a hook."""
        self.paused = False
        self._hook = hook

    def average(self, _: Any, bucket: dist.GradBucket) -> Future:  # type: ignore[name-defined] # torch wants this very name
        """The hook itself: DDP calls it for each bucket."""
        # A sparse gradient, of an embedding, has a bucket of its own, and sends only its rows anyway.
        sends_whole = self.paused or bucket.buffer().is_sparse
        found = _as_they_are(None, bucket) if sends_whole else self._send(bucket)
        return waits.until_done(found) if waits.may_last(bucket.buffer().device) else found

    def begin_backward(self) -> None:
        """The first backward of a pass is next."""

    def undo(self) -> Callable[[], None]:
        """What makes the hook forget the passes from now on."""
        return lambda: None

    def _send(self, bucket: Any) -> Future:
        return self._hook(None, bucket)


class WithFeedback(Hook):
    """Hooks with error feedback. It is stored by parameter, since DDP rebuilds its buckets after step one.

    _left   what was not sent of gradients that an optimizer has used
    _since  the same of all gradients, including those of passes since the last step of an optimizer
    """

    def __init__(self) -> None:
        super().__init__()
        self._left: dict[nn.Parameter, torch.Tensor] = {}
        self._since: dict[nn.Parameter, torch.Tensor] = {}
        register_optimizer_step_post_hook(self._keep)

    def begin_backward(self) -> None:
        """Drop what is left of gradients that were set to None or zero before an optimizer used them."""
        self._since = {p: rest for p, rest in self._since.items() if p.grad is not None and p.grad.any()}

    def undo(self) -> Callable[[], None]:
        """See Hook. PowerSGD keeps its newer factors: any are a start for the next iteration."""
        before = dict(self._since)

        def restore() -> None:
            self._since = before

        return restore

    def _keep(self, optimizer: Optimizer, *_: Any) -> None:
        """After a step of any optimizer."""
        for parameter in parameters_of(optimizer):
            if parameter.grad is not None and parameter in self._since:
                self._left[parameter] = self._since.pop(parameter)

    def _send(self, bucket: Any) -> Future:
        parameters, gradients = bucket.parameters(), bucket.gradients()
        for parameter, gradient in zip(parameters, gradients, strict=True):
            rest = self._since.get(parameter, self._left.get(parameter))
            if rest is not None:
                gradient.add_(rest)
        left = [gradient.clone() for gradient in gradients]
        self.exchange(parameters, gradients, left)
        self._since.update(zip(parameters, left, strict=True))
        done: Future = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done

    def exchange(
        self, parameters: list[nn.Parameter], gradients: list[torch.Tensor], left: list[torch.Tensor]
    ) -> None:
        """Set `gradients` to the mean of what all ranks sent; subtract what this rank sent from `left`."""
        raise NotImplementedError


class TopK(WithFeedback):
    """Sends the largest elements of a bucket and their indices: 8 bytes instead of 4, but of few elements."""

    def __init__(self, percent: float) -> None:
        super().__init__()
        self._fraction = percent / 100

    def exchange(
        self, parameters: list[nn.Parameter], gradients: list[torch.Tensor], left: list[torch.Tensor]
    ) -> None:
        del parameters
        size = dist.get_world_size()
        flat = torch.cat([g.reshape(-1) for g in gradients])
        count = max(1, int(self._fraction * flat.numel()))
        indices = flat.abs().topk(count, sorted=False).indices
        values = flat[indices]
        all_values = [torch.empty_like(values) for _ in range(size)]
        all_indices = [torch.empty_like(indices, dtype=torch.int32) for _ in range(size)]
        for found, mine in ((all_values, values), (all_indices, indices.int())):
            waits.wait(dist.all_gather(found, mine, async_op=True), flat.device)
        mean = torch.zeros_like(flat)
        for their_indices, their_values in zip(all_indices, all_values, strict=True):
            mean.index_add_(0, their_indices.long(), their_values, alpha=1 / size)
        flat[indices] = 0
        unflatten(mean, gradients)
        unflatten(flat, left)


class PowerSGD(WithFeedback):
    """One power iteration per step, starting from the factors of the step before."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self._rank = rank
        self._right: dict[nn.Parameter, torch.Tensor] = {}

    def exchange(
        self, parameters: list[nn.Parameter], gradients: list[torch.Tensor], left: list[torch.Tensor]
    ) -> None:
        thin = [self._pays(g) for g in gradients]
        whole = [g for g, is_thin in zip(gradients, thin, strict=True) if not is_thin]
        average(whole, None)
        for rest, is_thin in zip(left, thin, strict=True):
            if not is_thin:
                rest.zero_()
        chosen = [n for n, is_thin in enumerate(thin) if is_thin]
        matrices = [gradients[n].view(gradients[n].shape[0], -1) for n in chosen]
        rights = [self._right_of(parameters[n], m) for n, m in zip(chosen, matrices, strict=True)]
        lefts = [m @ q for m, q in zip(matrices, rights, strict=True)]
        average(lefts, None)
        lefts = [torch.linalg.qr(p).Q for p in lefts]
        rights = [m.t() @ p for m, p in zip(matrices, lefts, strict=True)]
        average(rights, None)
        for n, matrix, p, q in zip(chosen, matrices, lefts, rights, strict=True):
            self._right[parameters[n]] = q
            torch.mm(p, q.t(), out=matrix)
            left[n].sub_(gradients[n])

    def _pays(self, gradient: torch.Tensor) -> bool:
        rows = gradient.shape[0] if gradient.ndim > 1 else 1
        columns = gradient.numel() // max(rows, 1)
        return min(rows, columns) > self._rank and (rows + columns) * self._rank < gradient.numel()

    def _right_of(self, parameter: nn.Parameter, matrix: torch.Tensor) -> torch.Tensor:
        """(columns, rank), of the step before; at first random, and the same on every rank."""
        if parameter not in self._right:
            generator = torch.Generator().manual_seed(matrix.numel())
            first = torch.randn(matrix.shape[1], self._rank, generator=generator)
            self._right[parameter] = first.to(matrix)
        return self._right[parameter]


def hook(name: str, amount: float | None) -> Hook:
    """The hook of `--compress name:amount`."""
    match name:
        case "bf16":
            return Hook(default_hooks.bf16_compress_hook)
        case "fp16":
            return Hook(default_hooks.fp16_compress_hook)
        case "powersgd":
            return PowerSGD(int(amount or 4))
        case "topk":
            return TopK(amount or 1.0)
    raise AssertionError(name)
