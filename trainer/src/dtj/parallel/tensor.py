"""Tensor parallel: each rank holds some columns or rows of large matrices, all ranks get the same samples.

Shoeybi et al., "Megatron-LM" (2019): a matrix sharded by columns needs no communication; the next matrix,
sharded by rows, needs one all-reduce. The model defines which matrices are sharded:

    def tensor_plan(self, ranks: int) -> dict[str, str]    {"mlp.0": "columns", "mlp.2": "rows"}

All other parameters are replicated. With ddp as a second axis, gradients are averaged over it after backward.
With fsdp as a second axis, its ranks divide among them what a rank of tp would hold.
"""

from collections import Counter
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map_only

from dtj.errors import RecipeError
from dtj.parallel import deferred
from dtj.parallel.average import average_gradients
from dtj.parallel.fsdp import shard
from dtj.parallel.layout import Layout
from dtj.parallel.strategy import Strategy, blocks, broadcast_weights, make_mesh


class TensorParallel(Strategy):
    """torch's DTensor plans. Replicated parameters are DTensors too: optimizers handle a mix badly."""

    replicated = False
    loads_shards = True
    sends_in_forward = True

    def wrap(self, model: nn.Module, *, is_healing: bool = False) -> nn.Module:
        """Shard the model in place, by its tensor_plan."""
        from torch.distributed.tensor.parallel import parallelize_module  # noqa: PLC0415

        plan = self._plan(model)
        broadcast_weights(model, self.device)
        deferred.move_values(model, self.device)
        self._mesh = make_mesh(self.layout, self.device)
        parallelize_module(model, self._mesh["tp"], plan)
        _replicate_rest(model, self._mesh["tp"], planned=set(plan))
        model.register_forward_hook(_refuse_second_derivatives)
        return model

    def end_backward(self) -> None:
        if self.layout.size("ddp") > 1:
            average_gradients(self.parameters, self._mesh["ddp"].get_group())

    def _plan(self, model: nn.Module) -> dict[str, Any]:
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel  # noqa: PLC0415

        if not hasattr(model, "tensor_plan"):
            raise RecipeError(
                f"{type(model).__name__} has no tensor_plan(), so its matrices cannot be sharded",
                fix='define tensor_plan(self, ranks) -> {"path.of.linear": "columns", ...}, '
                "or use --parallel fsdp",
            )
        ranks = self.layout.size("tp")
        words: dict[str, str] = model.tensor_plan(ranks)  # type: ignore[operator]
        names = Counter(p for _, p in model.named_parameters(remove_duplicate=False))
        for path, word in words.items():
            if word not in {"columns", "rows"}:
                raise RecipeError(
                    f"tensor_plan() of {type(model).__name__}: invalid value {word!r} for {path}",
                    fix='use "columns" or "rows"',
                )
            try:
                weight = model.get_submodule(path).get_parameter("weight")
            except AttributeError as error:
                raise RecipeError(
                    f"tensor_plan() of {type(model).__name__}: no weight at {path}: {error}",
                    fix="name modules of the model that have a weight",
                ) from error
            if names[weight] > 1:
                raise RecipeError(
                    f"tensor_plan() of {type(model).__name__} names {path}, whose weight is a tied one",
                    fix="leave it out of the plan: sharding it would untie them",
                )
            size = weight.shape[0 if word == "columns" else 1]
            if size % ranks:
                raise RecipeError(
                    f"{path} has {size} {word}, which tp={ranks} does not divide",
                    fix=f"with N a divisor of {size}: start N processes, or --parallel tp+ddp --mesh tp=N",
                )
        for module in model.modules():
            own = next((name for name, _ in module.named_parameters(recurse=False)), None)
            if own and any(next(child.parameters(), None) is not None for child in module.children()):
                raise RecipeError(
                    f"--parallel tp: {type(module).__name__} holds the parameter {own} beside its layers",
                    fix="move it to a module of its own that has no submodules, or use --parallel fsdp",
                )
        kinds = {"columns": ColwiseParallel, "rows": RowwiseParallel}
        return {path: kinds[word]() for path, word in words.items()}


class TensorAndFullyShard(TensorParallel):
    """Each rank of tp keeps only a shard of its columns and rows, and gathers them block by block."""

    in_lockstep = True

    def __init__(self, layout: Layout, device: torch.device, *, half: torch.dtype | None) -> None:
        """half: as of FullyShard."""
        super().__init__(layout, device)
        self._half = half

    def wrap(self, model: nn.Module, *, is_healing: bool = False) -> nn.Module:
        """Shard the model in place, by its tensor_plan first."""
        model = super().wrap(model, is_healing=is_healing)
        self._mesh._flatten("all")  # so that the norm of all gradients is one message, not one for each axis
        for module in (*blocks(model), model):
            module.register_forward_hook(_own_memory)
        shard(model, self._mesh["fsdp"], half=self._half)
        return model


def _refuse_second_derivatives(_module: nn.Module, _inputs: Any, output: Any) -> None:
    """The backward of torch's tensor parallel layers is right, but not the backward of that backward."""

    def refuse(_gradient: torch.Tensor) -> None:
        if torch.is_grad_enabled():  # only with create_graph=True
            raise RecipeError(
                "--parallel tp cannot differentiate a gradient, as of a gradient penalty: it would be wrong",
                fix="use --parallel ddp or zero1, or leave the penalty out",
            )

    tree_map_only(torch.Tensor, lambda x: x.requires_grad and x.register_hook(refuse), output)


def _own_memory(_module: nn.Module, _inputs: Any, output: Any) -> Any:
    """The output, copied if it is a view: after an in-place operation on one, FSDP misses its backward."""
    return output.clone() if isinstance(output, torch.Tensor) and output._is_view() else output


def _replicate_rest(model: nn.Module, mesh: Any, *, planned: set[str]) -> None:
    """Make all other parameters replicated DTensors; their modules still take and return plain tensors."""
    from torch.distributed.tensor import DTensor, Replicate, distribute_module  # noqa: PLC0415

    replicate = partial(DTensor.from_local, device_mesh=mesh, placements=[Replicate()], run_check=False)

    def take(_: nn.Module, inputs: Any, mesh: Any) -> Any:
        return tuple(
            replicate(value) if isinstance(value, torch.Tensor) and not isinstance(value, DTensor) else value
            for value in inputs
        )

    def give(_: nn.Module, output: Any, mesh: Any) -> Any:
        return output.to_local() if isinstance(output, DTensor) else output

    rest = [
        module
        for path, module in model.named_modules()
        if path not in planned and next(module.parameters(recurse=False), None) is not None
    ]
    deferred.replace_parameters(rest, lambda parameter: replicate(parameter.data))
    for module in rest:
        distribute_module(module, mesh, None, take, give)
