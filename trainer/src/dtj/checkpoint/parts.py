"""The named parts of a run <-> one state: what a checkpoint holds, and what a newcomer gets from a survivor.

parts -> Snapshot     each rank's own; where ranks hold shards, rank 0 gets the tree of them all
state -> parts        whoever wrote it, and however it was sharded then
"""

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist

from dtj.checkpoint import save
from dtj.errors import RecipeError
from dtj.parallel.strategy import Strategy


class Stateful(Protocol):
    """What can be saved: models, optimizers, schedules, feeds."""

    def state_dict(self) -> Any: ...
    def load_state_dict(self, state: Any, /) -> Any: ...


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """State after a step: on rank 0 the tree of state.pt (else empty), and this rank's shards by key."""

    step: int
    tree: dict[str, Any]
    shards: dict[str, torch.Tensor]

    def copied(self) -> "Snapshot":
        """The same in memory of its own, which no later step changes."""
        return Snapshot(step=self.step, tree=_copied(self.tree), shards=_copied(self.shards))


class Parts:
    """What is saved besides the step; random generators follow from that.

    named   what `run.state` names; a checkpoint must hold exactly these
    extras  what flags add (the loss scale of fp16, an outer optimizer): restored where the checkpoint has it
    """

    def __init__(self, strategy: Strategy) -> None:
        self.user_parts: dict[str, Stateful] = {}
        self.internal_parts: dict[str, Stateful] = {}
        self._strategy = strategy

    def register(self, parts: Mapping[str, Stateful]) -> None:
        """Take them as `named`. RecipeError for what could not be saved: now, not at the first save."""
        for name, part in parts.items():
            if not hasattr(part, "state_dict") or not hasattr(part, "load_state_dict"):
                raise RecipeError(
                    f"run.state got {name}, a {type(part).__qualname__} without state_dict",
                    fix="give it state_dict and load_state_dict, or leave it out",
                )
            save.check_loadable(part.state_dict(), name)
        self.user_parts = dict(parts)

    def state(self, step: int) -> dict[str, Any]:
        """All of it as this rank has it. Whole only where every rank holds the whole state."""
        return self._tree(step, {name: part.state_dict() for name, part in self._all.items()})

    def snapshot(self, step: int, group: "dist.ProcessGroup | None") -> Snapshot:
        """Every rank calls this after the same step; where each holds all, nothing is exchanged."""
        is_rank0 = group is None or dist.get_rank(group) == 0
        if self._strategy.replicated:
            return Snapshot(step=step, tree=self.state(step) if is_rank0 else {}, shards={})
        from dtj.checkpoint import sharded  # noqa: PLC0415 - half a second of imports that DDP does not need

        mine, shards = sharded.extract_tensors({name: part.state_dict() for name, part in self._all.items()})
        everyone = [mine]
        if group is not None:
            everyone = [None] * dist.get_world_size(group)
            dist.gather_object(mine, everyone if is_rank0 else None, group=group)
        tree = self._tree(step, sharded.merge_trees(everyone)) if is_rank0 else {}
        return Snapshot(step=step, tree=tree, shards=shards)

    def load(self, state: Mapping[str, Any], shards: Path | None) -> None:
        """Take over a state; RecipeError where it is of other parts, or of a model of another shape.

        shards  folder of those of the checkpoint; None where the state is whole
        """
        if state["parts"].keys() != self.user_parts.keys():
            raise RecipeError(
                f"the checkpoint holds {', '.join(sorted(state['parts']))}, "
                f"but run.state names {', '.join(sorted(self.user_parts))}",
                fix="name the same parts, or start a new run without the checkpoint",
            )
        extras = state.get("extras", {})
        wanted = {name: part for name, part in self._all.items() if name in self.user_parts or name in extras}
        found = self._here(state["parts"] | extras, wanted, shards)
        for name, part in wanted.items():
            try:
                part.load_state_dict(found[name])
            except (RuntimeError, ValueError, KeyError) as error:
                raise RecipeError(
                    f"{name} does not fit the checkpoint of step {state['step']}: {str(error).strip()}",
                    fix="build the same model and optimizer, or start a new run without the checkpoint",
                ) from error

    @property
    def _all(self) -> dict[str, Stateful]:
        return self.user_parts | self.internal_parts

    def _tree(self, step: int, states: Mapping[str, Any]) -> dict[str, Any]:
        save.check_loadable(states, "state")
        return {
            "step": step,
            "parts": {name: states[name] for name in self.user_parts},
            "extras": {name: states[name] for name in self.internal_parts},
        }

    def _here(self, whole: dict[str, Any], parts: Mapping[str, Any], shards: Path | None) -> dict[str, Any]:
        """What this rank needs of it."""
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


def _copied(state: Any) -> Any:
    if isinstance(state, torch.Tensor):
        return state.detach().clone() if state.device.type == "cpu" else state.detach().cpu()
    if isinstance(state, dict):
        return {key: _copied(value) for key, value in state.items()}
    if isinstance(state, list | tuple):
        return type(state)(_copied(value) for value in state)
    return copy.copy(state)
