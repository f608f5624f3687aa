"""Pipeline parallel: each rank holds some consecutive layers, and micro-batches flow through the ranks.

Narayanan et al., "PipeDream" (2019): in its 1F1B schedule a stage alternates one forward and one backward, so
it keeps the activations of at most as many micro-batches as there are stages. With M micro-batches and S
stages, (S - 1) / (M + S - 1) of the time is spent waiting. Which layers a stage holds: stages.py.

Recipes need no change. A loss such as `lambda mb: cross_entropy(model(mb.x), mb.y)` is called on the first
stage to capture the input of the model, and on the last stage, where `model(...)` returns the output of the
pipeline.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import nn

from dtj.errors import RecipeError
from dtj.parallel import buffers
from dtj.parallel.average import average_gradients
from dtj.parallel.layout import Layout
from dtj.parallel.stages import keep_own, modules_of, split_into_stages, users_of
from dtj.parallel.strategy import Strategy, WeightedLoss, broadcast, broadcast_weights
from dtj.ranks import exchange
from dtj.ranks.world import collective_timeout


class Pipeline(Strategy):
    """torch's schedules. The module keeps its names; parameters of other stages become meta tensors."""

    replicated = False
    sends_in_forward = True

    def __init__(self, layout: Layout, device: torch.device) -> None:
        super().__init__(layout, device)
        self._stages = layout.size("pp")
        self.pipeline_micro_batches = 4 * self._stages  # then stages work at least four fifths of the time
        self._stage = layout.at("pp")
        self._output: torch.Tensor | None = None  # of the last stage, while the loss runs on it
        self._is_capturing = False
        self._own: list[nn.Parameter] = []  # of this stage
        self._others: set[nn.Module] = set()  # that only other stages use
        self._schedules: dict[Any, Any] = {}
        self._shape: torch.Size | None = None  # of a sample

    def wrap(self, model: nn.Module, *, is_healing: bool = False) -> nn.Module:
        """The same module, without the weights of other stages; calling it runs the whole pipeline."""
        if self._own:
            raise RecipeError(
                "--parallel pp: run.parallel was called for a second model", fix="use one nn.Module for all"
            )
        stages = split_into_stages(model, self._stages)
        broadcast_weights(model, self.device)
        copies = self.layout.size("ddp")
        self._columns = [range(column, self._stages * copies, copies) for column in range(copies)]
        self._group = self._open_all(self._columns)
        rows = (range(stage * copies, (stage + 1) * copies) for stage in range(self._stages))
        self._data_group = self._open_all(rows) if copies > 1 else None
        self._chain = _Chain([call for call, _ in stages[self._stage]], self)
        users = users_of(stages)
        keep_own(model, users, stage=self._stage, device=self.device)
        own = modules_of(stages[self._stage])
        self._changing = buffers.owners(own)
        self._others = {module for pieces in stages for module in modules_of(pieces)} - set(own)
        self._tied = self._tie(users)
        model.forward = self._forward
        self._model = model
        self._own = [p for p in model.parameters() if not p.is_meta]
        return model

    def updates(self, module: nn.Module) -> bool:
        return module not in self._others

    def accumulate(self, weighted_loss: WeightedLoss, micro_batches: Sequence[Any]) -> torch.Tensor:
        is_first, is_last = self._stage == 0, self._stage == self._stages - 1
        inputs = self._inputs(weighted_loss, micro_batches) if is_first else None

        def loss(output: torch.Tensor, number: torch.Tensor) -> torch.Tensor:
            self._output = output
            try:
                return weighted_loss(micro_batches[int(number)])
            finally:
                self._output = None

        losses: list[torch.Tensor] = []
        schedule = self._schedule(len(micro_batches), len(micro_batches[0].indices))
        schedule._loss_fn = loss
        schedule.step(
            *([inputs] if is_first else []),
            target=torch.arange(len(micro_batches)) if is_last else None,
            losses=losses,
            return_outputs=False,
        )

        total = (
            torch.stack([x.detach().float() for x in losses]).sum()  # of one type on all stages
            if is_last
            else torch.zeros((), device=self.device)
        )
        dist.broadcast(total, group_src=self._stages - 1, group=self._group)
        return total

    def clip(self, max_norm: float, parameters: Sequence[nn.Parameter]) -> torch.Tensor:
        """As in other strategies; the norm is over all stages, and counts a weight of two stages once."""
        mine = [p for p in parameters if p.grad is not None]
        counted = [p.grad for p in mine if p.grad is not None and p not in self._counted_elsewhere]
        square = sum((g.float().square().sum() for g in counted), torch.zeros((), device=self.device))
        dist.all_reduce(square, group=self._group)
        norm = square.sqrt()
        nn.utils.clip_grads_with_norm_(mine, max_norm, norm)
        return norm

    def broadcast_buffers(self, model: nn.Module) -> None:
        """The buffers of the first data-parallel copy, on all copies. Each stage has its own buffers."""
        if self._data_group is not None:
            for buffer in model.buffers():
                if not buffer.is_meta:
                    broadcast(buffer, self._data_group)

    def _forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        """What `model(...)` does: capture its input, return the pipeline's output, or run all stages."""
        if self._is_capturing:
            raise _Captured(inputs)
        if self._output is not None:
            return self._output
        if torch.is_grad_enabled() and self._model.training:
            raise RecipeError(
                "a pipelined model was called with gradients outside run.backward, which runs the schedule",
                fix="call it in the loss function of run.backward, or use torch.no_grad() to evaluate",
            )
        return self._run_through(*inputs)

    def _run_through(self, *inputs: torch.Tensor) -> torch.Tensor:
        """Forward only, one stage after the other; every rank returns the output of the last stage."""
        value = inputs[0]
        for stage in range(self._stages):
            if stage == self._stage:
                value = self._chain(value)
            shape, dtype = exchange.broadcast([tuple(value.shape), value.dtype], src=stage, group=self._group)
            if stage != self._stage:
                value = torch.empty(shape, dtype=dtype, device=self.device)
            value = value.contiguous()
            dist.broadcast(value, group_src=stage, group=self._group)
        return value

    def _inputs(self, weighted_loss: WeightedLoss, micro_batches: Sequence[Any]) -> torch.Tensor:
        found = [self._input_of(weighted_loss, micro_batch) for micro_batch in micro_batches]
        self._shape = self._shape or found[0].shape[1:]
        check_one_shape(found, self._shape)
        return torch.cat(found)

    def _input_of(self, weighted_loss: WeightedLoss, micro_batch: Any) -> torch.Tensor:
        """What the loss passes to the model: runs the loss up to its call of the model."""
        self._is_capturing = True
        try:
            weighted_loss(micro_batch)
        except _Captured as captured:
            if len(captured.inputs) == 1 and isinstance(captured.inputs[0], torch.Tensor):
                return captured.inputs[0]
            raise RecipeError(
                "a pipelined model takes one tensor", fix="call model(x) in the loss, with x a tensor"
            ) from None
        finally:
            self._is_capturing = False
        raise RecipeError(
            "the loss does not call the model that run.parallel returned", fix="call model(mb.x) in it"
        )

    def _schedule(self, micro_batches: int, samples: int) -> Any:
        """The schedule for a number and size of micro-batches: a stage allocates buffers for one shape."""
        from torch.distributed import pipelining  # noqa: PLC0415

        key = (micro_batches, samples)
        if key not in self._schedules:
            module = _Shaped(self._chain, self._changing)
            stage = pipelining.PipelineStage(
                module, self._stage, self._stages, self.device, group=self._group
            )
            kind = pipelining.Schedule1F1B if micro_batches >= self._stages else pipelining.ScheduleGPipe
            self._schedules[key] = kind(stage, micro_batches, loss_fn=_no_loss_yet, scale_grads=False)
        return self._schedules[key]

    def end_backward(self) -> None:
        for weight, group in self._tied:
            if weight.grad is not None:
                dist.all_reduce(weight.grad, group=group)
        if self._data_group is not None:
            average_gradients(self._own, self._data_group)

    def _open_all(self, groups: Iterable[Sequence[int]]) -> Any:
        """Open all of these groups, as every rank does; return the one that this rank is in."""
        opened = [(ranks, _open(ranks)) for ranks in groups]
        return next(group for ranks, group in opened if self.layout.rank in ranks)

    def _tie(self, users: dict[nn.Parameter, set[int]]) -> list[tuple[nn.Parameter, Any]]:
        """Weights that several stages use, with the group of those stages. Every rank creates every group."""
        found = []
        self._counted_elsewhere: set[nn.Parameter] = set()
        for parameter, stages in users.items():
            if len(stages) < 2:
                continue
            for column in self._columns:
                group = _open([column[stage] for stage in sorted(stages)])
                if self.layout.rank in column and self._stage in stages:
                    found.append((parameter, group))
                    if self._stage != min(stages):
                        self._counted_elsewhere.add(parameter)
        return found


def check_one_shape(inputs: Sequence[torch.Tensor], shape: torch.Size) -> None:
    """RecipeError if a sample of any micro-batch has another shape: stages allocate buffers for one shape."""
    for found in inputs:
        if found.shape[1:] != shape:
            raise RecipeError(
                f"samples of shape {tuple(found.shape[1:])} come after samples of shape {tuple(shape)}, "
                "but all samples of a pipeline have one shape",
                fix="pad them to one length in collate, or use --parallel fsdp",
            )


def _open(ranks: Sequence[int]) -> Any:
    """A group of some ranks.

    gloo bounds a send and a receive by the time-out that their group was opened with, so it is not set later.
    """
    return dist.new_group(list(ranks), timeout=collective_timeout())


class _Captured(Exception):  # noqa: N818 - not an error: how the inputs get out of the user's loss
    def __init__(self, inputs: tuple[Any, ...]) -> None:
        self.inputs = inputs


class _Chain(nn.Module):
    """Runs this stage's pieces, one after the other."""

    def __init__(self, calls: list[Callable[[torch.Tensor], torch.Tensor]], strategy: Strategy) -> None:
        super().__init__()
        self._calls = calls
        self._strategy = strategy

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        with self._strategy.autocast():
            for call in self._calls:
                value = call(value)
        return value


class _Shaped(nn.Module):
    """What torch runs: first of all once with values of no meaning, to learn the shapes of the outputs.

    That call changes no running statistics.
    """

    def __init__(self, chain: _Chain, changing: list[nn.Module]) -> None:
        super().__init__()
        self._chain = chain
        self._changing = changing  # a list: torch would move and count modules that it knows of
        self._has_shapes = False

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        if self._has_shapes:
            return cast(torch.Tensor, self._chain(value))
        self._has_shapes = True
        with buffers.replaced(self._changing, buffers.copied(self._changing)):
            return cast(torch.Tensor, self._chain(value))


def _no_loss_yet(*_: Any) -> torch.Tensor:
    raise AssertionError("the loss of a step is set before it runs")
