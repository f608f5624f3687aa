"""What `run` and `step/backward.py` ask of a way to spread one model; this class itself is a single process.

wrap -> for each step: accumulate (forward and backward of all micro-batches), clip, after_step
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from dtj.errors import RecipeError
from dtj.parallel.layout import Layout

# micro-batch -> (), this rank's share of the loss of the global batch, with its graph
WeightedLoss = Callable[[Any], torch.Tensor]


class Strategy:
    """One process with the whole model.

    replicated   every rank holds the whole state, so a newcomer can take it from any other rank
    in_lockstep  forward itself talks to ranks with other samples: all of them must run it equally often
    same_optimizer_state  ranks with the same parameters have the same optimizer state, too
    heals        a lost rank can be replaced while the others go on, over new process groups
    needs_warm_up  the first backward after a start rounds differently from the later ones
    pipelined    micro-batches must have one size; how many of them are good
    slack        steps that a rank may be ahead of the slowest one
    extra        what a checkpoint must hold of the strategy itself

    models, parameters, buffers   what is trained, listed once: a walk through modules takes long
    """

    replicated = True
    same_optimizer_state = True
    in_lockstep = False
    heals = False
    needs_warm_up = False
    pipeline_micro_batches: int | None = None
    max_steps_ahead = 0
    extra: Any = None

    def __init__(self, layout: Layout, device: torch.device) -> None:
        self.layout = layout
        self.device = device
        self.models: list[nn.Module] = []
        self.parameters: list[nn.Parameter] = []
        self.buffers: list[torch.Tensor] = []
        self.step = 0
        self.total_steps = 0
        self.autocast: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext

    def add(self, model: nn.Module, *, is_healing: bool) -> nn.Module:
        """Wrap a model, which is trained from now on."""
        wrapped = self.wrap(model, is_healing=is_healing)
        self.models.append(wrapped)
        self.parameters += wrapped.parameters()
        self.buffers += wrapped.buffers()
        return wrapped

    def wrap(self, model: nn.Module, *, is_healing: bool = False) -> nn.Module:
        """The model as it is trained, on the device.

        is_healing  the others train already and will hand over their weights: exchange nothing now
        """
        del is_healing
        return move_to_device(model, self.device)

    def rebuild(self) -> None:
        """After a change of process groups, before the next forward."""

    def unwrap(self, model: nn.Module) -> nn.Module:
        """The user's own module, whose state has no prefixes."""
        return model

    def accumulate(self, weighted_loss: WeightedLoss, micro_batches: Sequence[Any]) -> torch.Tensor:
        """Forward and backward of this rank's micro-batches; then gradients are means over all ranks.

        Returns () detached, this rank's part of the loss: its mean over the ranks is the global one.
        """
        *others, last = micro_batches
        losses = []
        if others:
            with self.without_sync():
                losses = [_backward(weighted_loss(micro_batch)) for micro_batch in others]
        losses.append(_backward(weighted_loss(last)))
        return sum(losses[1:], start=losses[0])

    @contextlib.contextmanager
    def without_sync(self) -> Iterator[None]:
        """Backward passes in here only add up locally."""
        yield

    def clip(self, max_norm: float) -> torch.Tensor:
        """Scale all gradients such that their norm is at most max_norm; () the norm before, on the device."""
        norm: Any = nn.utils.clip_grad_norm_(self.parameters, max_norm)
        whole: torch.Tensor = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
        return whole

    def start(self, step: int, total_steps: int) -> None:
        """Training goes on after `step`."""
        self.step, self.total_steps = step, total_steps

    def after_step(self, step: int, *, force: bool = False) -> None:
        """The optimizer has done `step`. Ranks that differ synchronize when it is time, with `force` now."""
        del force
        self.step = step

    @contextlib.contextmanager
    def warming_up(self) -> Iterator[None]:
        """Around a backward pass whose gradients are thrown away."""
        yield

    def keeps(self, parameter: nn.Parameter) -> bool:
        """This rank keeps the optimizer's state of the parameter."""
        return not parameter.is_meta

    def in_sync(self, step: int) -> bool:
        """After this step all ranks have the same model, so that it can be saved."""
        return True

    @contextlib.contextmanager
    def evaluating(self) -> Iterator[None]:
        """Evaluation mode, with rank 0's buffers (batch norm's statistics) on every rank."""
        for model in self.models:
            self.broadcast_buffers(self.unwrap(model))
        training = [m for m in self.models if m.training]
        for model in training:
            model.eval()
        try:
            yield
        finally:
            for model in training:
                model.train()

    def broadcast_buffers(self, model: nn.Module) -> None:
        """Rank 0's buffers on every rank that holds them."""
        if dist.is_initialized():
            for buffer in model.buffers():
                dist.broadcast(buffer, src=0)


def move_to_device(model: nn.Module, device: torch.device) -> nn.Module:
    """The model on the device; one that has laid its parts on several devices stays where it is."""
    return model if is_on_several_devices(model) else model.to(device)


def is_on_several_devices(model: nn.Module) -> bool:
    """Its parameters are on more than one device."""
    return len({parameter.device for parameter in model.parameters()}) > 1


def _backward(loss: torch.Tensor) -> torch.Tensor:
    """() detached."""
    loss.backward()  # type: ignore[no-untyped-call]
    return loss.detach()


class Replicated(Strategy):
    """Every rank holds the whole model, as rank 0 begins it; what is exchanged when is up to the subclass.

    weights  the trained parameters of all models
    """

    def __init__(self, layout: Layout, device: torch.device) -> None:
        super().__init__(layout, device)
        self.weights: list[nn.Parameter] = []

    def wrap(self, model: nn.Module, *, is_healing: bool = False) -> nn.Module:
        check_trainable(model)
        broadcast_weights(model, self.device)
        model = super().wrap(model, is_healing=is_healing)
        self.weights += [p for p in model.parameters() if p.requires_grad]
        return model


def broadcast_weights(model: nn.Module, device: torch.device) -> None:
    """Rank 0's parameters and buffers on every rank, one at a time; the model stays where it is.

    Ranks build their model from the same seed, but nothing forces a recipe to use it for every number.
    """
    for value in (*model.parameters(), *model.buffers()):
        there = value.detach().to(device)
        dist.broadcast(there, src=0)
        value.detach().copy_(there)


def blocks(model: nn.Module) -> list[nn.Module]:
    """The repeated layers of a model: the members of its outermost ModuleLists and Sequentials, else none."""
    found: list[nn.Module] = []

    def walk(module: nn.Module) -> None:
        for child in module.children():
            if isinstance(child, nn.ModuleList | nn.Sequential):
                found.extend(c for c in child if any(True for _ in c.parameters()))
            else:
                walk(child)

    if isinstance(model, nn.ModuleList | nn.Sequential):
        return [c for c in model if any(True for _ in c.parameters())]
    walk(model)
    return found


def check_trainable(model: nn.Module) -> None:
    """Raise RecipeError where no parameter wants a gradient."""
    if not any(p.requires_grad for p in model.parameters()):
        raise RecipeError(
            f"{type(model).__name__} has no parameter that requires a gradient: there is nothing to train",
            fix="unfreeze a layer, or leave the model out of run.parallel",
        )
