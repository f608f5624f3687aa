"""The parts of a run <-> one state: what a checkpoint holds, and what a survivor hands to a newcomer.

parts -> Snapshot     on each rank; if ranks hold shards, rank 0 also gets the tree of all ranks
state -> parts        whichever strategy saved it, and however it was sharded then
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_flatten_with_path, tree_leaves, tree_map_only, tree_map_with_path

from dtj.checkpoint import placeholders, save
from dtj.checkpoint.objects import Location
from dtj.errors import RecipeError
from dtj.parallel.names import load_state, named_buffers, named_parameters, state_of
from dtj.parallel.strategy import Strategy, local_part, parameters_of
from dtj.ranks import exchange

if TYPE_CHECKING:
    from dtj.checkpoint.sharded import LoadPlan

Rates = Mapping[str, Sequence[float | None]]  # of the groups of each optimizer


class Stateful(Protocol):
    """A part that can be saved: a model, optimizer, schedule or feed."""

    def state_dict(self) -> Any: ...
    def load_state_dict(self, state: Any, /) -> Any: ...


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """State after a step: the tree of state.pt (empty except on rank 0), and this rank's shards by key."""

    step: int
    tree: dict[str, Any]
    shards: dict[str, torch.Tensor]

    def copied(self, earlier: "Snapshot | None" = None) -> "Snapshot":
        """A copy in host memory, which later steps do not change.

        earlier  a copy that is no longer needed: its tensors are overwritten where they fit, since the first
                 write to new memory takes several times as long
        """
        old = earlier or Snapshot(step=0, tree={}, shards={})
        return Snapshot(
            step=self.step, tree=_copied(self.tree, old.tree), shards=_copied(self.shards, old.shards)
        )


class Parts:
    """What is saved besides the step. Random generators are not: they are seeded by the step.

    user_parts      registered by `run.state`; a checkpoint must hold exactly these
    internal_parts  added by flags (the loss scale of fp16, an outer optimizer); restored if the checkpoint
                    has them. `extras` in the file
    rates           learning rates that a program gave, before a schedule changed them; after a restore those
                    of the checkpoint
    """

    def __init__(self, strategy: Strategy) -> None:
        self.user_parts: dict[str, Stateful] = {}
        self.internal_parts: dict[str, Stateful] = {}
        self.rates: dict[str, list[float | None]] = {}
        self._strategy = strategy

    def register(self, parts: Mapping[str, Stateful]) -> None:
        """Set `user_parts`. RecipeError for a part that cannot be saved: now, not at the first save."""
        for name, part in parts.items():
            if not hasattr(part, "state_dict") or not hasattr(part, "load_state_dict"):
                raise RecipeError(
                    f"run.state got {name}, a {type(part).__qualname__} without state_dict",
                    fix="define state_dict and load_state_dict, or omit it",
                )
            save.check_loadable(_state_of(part), name)
        self.user_parts = dict(parts)
        self.rates = self._rates()

    def state(self, step: int) -> dict[str, Any]:
        """The state as this rank holds it; complete only if every rank holds the whole state."""
        return self._tree(step, self.rank_state())

    def snapshot(self, step: int, group: "dist.ProcessGroup | None") -> Snapshot:
        """The state to save. Every rank calls this after the same step; only sharded state needs messages."""
        is_rank0 = group is None or dist.get_rank(group) == 0
        if self._strategy.replicated:
            return Snapshot(step=step, tree=self.state(step) if is_rank0 else {}, shards={})
        from dtj.checkpoint import sharded  # noqa: PLC0415 - half a second of imports that DDP does not need

        states = self.rank_state()
        for part, name in self._buffers_of_others():
            if name in states[part]:  # the program may leave one out of its checkpoints
                states[part][name] = local_part(states[part][name]).to("meta")
        mine, shards = sharded.extract_tensors(states)
        trees = [mine]  # of all ranks
        if group is not None:
            trees = exchange.gather(mine, group=group)
        tree = self._tree(step, placeholders.merge(trees)) if is_rank0 else {}
        return Snapshot(step=step, tree=tree, shards=shards)

    def load(self, state: Mapping[str, Any], shards: Location | None) -> None:
        """Load a state; RecipeError if it has other parts, or does not fit the model or optimizer.

        shards  the checkpoint's folder of shards; None if `state` is whole
        """
        if state["parts"].keys() != self.user_parts.keys():
            raise RecipeError(
                f"the checkpoint holds {', '.join(sorted(state['parts']))}, "
                f"but run.state names {', '.join(sorted(self.user_parts))}",
                fix="name the same parts, or start a new run without the checkpoint",
            )
        self._check_parameters(state)
        extras = state.get("extras", {})
        wanted = {name: part for name, part in self._all.items() if name in self.user_parts or name in extras}
        found = self._for_this_rank(state["parts"] | extras, wanted, shards)
        for name, part in wanted.items():
            try:
                load_state(part, found[name])
                _check_kind(part)
            except (RuntimeError, ValueError, KeyError) as error:
                raise RecipeError(
                    f"{name} does not fit the checkpoint of step {state['step']}: {str(error).strip()}",
                    fix="build the same model and optimizer, or start a new run without the checkpoint",
                ) from error

    def gradients(self) -> list[torch.Tensor | None]:
        """Of the parameters of all models: means over the ranks that the optimizer has not used yet."""
        return [parameter.grad for parameter in self._strategy.parameters]

    def load_gradients(self, gradients: Sequence[torch.Tensor | None]) -> None:
        """Load what `gradients` of another rank returned."""
        for parameter, gradient in zip(self._strategy.parameters, gradients, strict=True):
            parameter.grad = gradient

    def rank_state(self) -> dict[str, Any]:
        """What this rank alone holds, by part: shards stay sharded. For this rank, and the same layout."""
        return {name: _state_of(part) for name, part in self._all.items()}

    def load_rank_state(self, states: Mapping[str, Any]) -> None:
        """Load what `rank_state` returned."""
        for name, part in self._all.items():
            load_state(part, states[name])

    def templates(self) -> Callable[[str], torch.Tensor | None]:
        """Path in `rank_state` -> the tensor that this rank has there now; None if there is none.

        For state of an optimizer, the parameter. It refers to the whole state: do not keep it.
        """

        @cache
        def plan() -> "LoadPlan":
            from dtj.checkpoint import sharded  # noqa: PLC0415

            return sharded.LoadPlan(self._all, keeps=self._strategy.keeps)

        return lambda path: plan().template(path)

    @property
    def _all(self) -> dict[str, Stateful]:
        return self.user_parts | self.internal_parts

    @property
    def _models(self) -> dict[str, nn.Module]:
        return {name: part for name, part in self.user_parts.items() if isinstance(part, nn.Module)}

    @property
    def _optimizers(self) -> dict[str, Optimizer]:
        return {name: part for name, part in self.user_parts.items() if isinstance(part, Optimizer)}

    def _tree(self, step: int, states: Mapping[str, Any]) -> dict[str, Any]:
        save.check_loadable(states, "state")
        return {
            "step": step,
            "parts": {name: states[name] for name in self.user_parts},
            "extras": {name: states[name] for name in self.internal_parts},
            "parameters": self._names_of_parameters(),
            "rates": dict(self.rates),
            "tied": {
                name: tied for name, model in self._models.items() if (tied := self._strategy.tied.get(model))
            },
        }

    def _buffers_of_others(self) -> list[tuple[str, str]]:
        """(part, name in its state) of the models' whole buffers that another rank saves.

        Ranks with other samples have other running statistics: those of the first are saved.
        """
        is_first = self._strategy.layout.data_rank == 0
        return [
            (part, name)
            for part, model in self._models.items()
            for name, module, buffer in named_buffers(model)
            if all(each.is_replicate() for each in getattr(buffer, "placements", ()))
            and not (is_first and self._strategy.updates(module))
        ]

    def load_rates(self, before: Rates) -> None:
        """After a restore: set `rates` to those of the checkpoint, unless it has the program's after all.

        It has them if the program sets them after each restore.
        """
        of_groups = self._rates()
        for name, rates in before.items():
            if name in self.rates:
                found = zip(rates, self.rates[name], of_groups[name], strict=False)
                self.rates[name] = [now if now == given else was for was, given, now in found]

    def _rates(self) -> dict[str, list[float | None]]:
        return {
            name: [_rate_of(group) for group in optimizer.param_groups]
            for name, optimizer in self._optimizers.items()
        }

    def _names_of_parameters(self) -> dict[str, list[str]]:
        """Of each optimizer, in the order in which its state has numbers; "" for one of no model."""
        models = self._models.items()
        names = {p: f"{part}.{name}" for part, model in models for name, p in named_parameters(model)}
        return {
            name: [names.get(p, "") for p in parameters_of(optimizer)]
            for name, optimizer in self._optimizers.items()
        }

    def _check_parameters(self, state: Mapping[str, Any]) -> None:
        """RecipeError if an optimizer has others, or in another order: each would get the state of another.

        Its number of parameters is checked by the optimizer itself.
        """
        saved = state.get("parameters", {})
        for part, names in self._names_of_parameters().items():
            for number, (name, was) in enumerate(zip(names, saved.get(part, ()), strict=False)):
                if was != name:
                    is_one, was_one = (each or "of no model" for each in (name, was))
                    raise RecipeError(
                        f"{part} does not fit the checkpoint of step {state['step']}: its parameter {number} "
                        f"is {is_one}, in the checkpoint {was_one}",
                        fix="define the layers in the same order, or start a new run without the checkpoint",
                    )

    def _for_this_rank(
        self, whole: dict[str, Any], parts: Mapping[str, Any], shards: Location | None
    ) -> dict[str, Any]:
        if self._strategy.replicated and shards is None:
            return whole
        from dtj.checkpoint import sharded  # noqa: PLC0415

        plan = sharded.LoadPlan(parts, keeps=self._strategy.keeps)
        found: dict[str, Any]
        if shards is None:
            found = sharded.shard_whole_state(whole, plan)
        else:
            found = sharded.load_tensors(whole, shards, plan)
        return found


def _rate_of(group: Mapping[str, Any]) -> float | None:
    rate = group.get("initial_lr", group.get("lr"))
    return None if rate is None else float(rate)


def _state_of(part: Stateful) -> Any:
    """NumPy's numbers as Python's, as of a learning rate that np.cos computed: torch would not load them."""
    state = state_of(part)
    if any(isinstance(each, np.generic) for each in tree_leaves(state)):
        return tree_map_only(np.generic, lambda number: number.item(), state)
    return state


def _check_kind(part: Stateful) -> None:
    """ValueError if the state was that of an optimizer of another kind; torch would only fail in its step."""
    if isinstance(part, Optimizer):
        for lacks in (sorted(part.defaults.keys() - group.keys()) for group in part.param_groups):
            if lacks:
                raise ValueError(f"it is that of another kind of optimizer, without {', '.join(lacks)}")


def _copied(state: Any, earlier: Any) -> Any:
    before = dict(tree_flatten_with_path(earlier)[0])
    copies: dict[Any, torch.Tensor] = {}  # by memory: tied weights stay tied
    used: set[int] = set()  # of the earlier copies, by id: what was tied then may not be now

    def copy_of(path: Any, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return copy.copy(value)
        memory = placeholders.memory_of(value) or path
        if memory not in copies:
            old: Any = before.get(path)
            fits = id(old) not in used and _fits(old, value)
            copies[memory] = (old if fits else _host_memory_for(value)).copy_(value.detach())
            used.add(id(old))
        return copies[memory]

    return tree_map_with_path(copy_of, state)


def _host_memory_for(tensor: torch.Tensor) -> torch.Tensor:
    """Memory for a copy; pinned for a tensor on a GPU, so that the copy has the full speed of the bus."""
    is_pinned = tensor.device.type == "cuda"
    return torch.empty_like(tensor, device="cpu", requires_grad=False, pin_memory=is_pinned)


def _fits(earlier: Any, tensor: torch.Tensor) -> bool:
    """True if a tensor can be copied into an earlier copy of it."""
    return isinstance(earlier, torch.Tensor) and all(
        getattr(earlier, each, None) == getattr(tensor, each, None)
        for each in ("shape", "dtype", "layout", "placements", "device_mesh")
    )
