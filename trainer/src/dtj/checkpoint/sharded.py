"""State that no rank holds whole: each writes its own shards beside the small rest, and reads what it needs.

<run>/step-120/state.pt   the tree of the state, where a large tensor is only a Mark
<run>/step-120/shards/    the tensors, by torch.distributed.checkpoint: readable in any number of ranks

Keys are those of the unsharded state (`model/blocks.0.mlp.0.weight`, `optimizer/state/3/exp_avg`), so that
any strategy reads what any other wrote.
"""

import contextlib
import pickle
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict_loader import load as load_shards
from torch.distributed.checkpoint.state_dict_saver import save as save_shards
from torch.optim import Optimizer

from dtj.checkpoint import paths, save
from dtj.checkpoint.shard_reader import ShardReader
from dtj.errors import CheckpointError

# A dict of one such key stands for a tensor in the shards; nothing else in a state has it.
_PLACEHOLDER = "dtj/shard"
Tensors = dict[str, torch.Tensor]


def extract_tensors(state: Any, path: str = "") -> tuple[Any, Tensors]:
    """(tree with keys, tensors by key): single numbers stay in the tree, meta tensors are another rank's."""
    if isinstance(state, torch.Tensor) and (state.ndim or state.is_meta):
        return {_PLACEHOLDER: path}, {} if state.is_meta else {path: state}
    if isinstance(state, dict):
        parts = {key: extract_tensors(value, _join(path, key)) for key, value in state.items()}
        found = {k: v for _, tensors in parts.values() for k, v in tensors.items()}
        return {key: tree for key, (tree, _) in parts.items()}, found
    return state, {}


def merge_trees(trees: list[Any]) -> Any:
    """One tree of all ranks' trees: dicts are united, in all else the first rank's counts."""
    first = next((tree for tree in trees if not _is_placeholder(tree)), trees[0])
    if not isinstance(first, dict) or _is_placeholder(first):
        return first
    keys = dict.fromkeys(key for tree in trees for key in tree)
    return {key: merge_trees([tree[key] for tree in trees if key in tree]) for key in keys}


def write(run_dir: Path, step: int, tensors: Tensors, *, group: Any) -> None:
    """Write this rank's tensors, once where several hold them, into the prepared folder of `step`.

    Returns when all ranks of the group have; CheckpointError on all of them where one could not.
    """
    writer = FileSystemWriter(run_dir / paths.pending_name_of(step) / paths.SHARDS)  # fsyncs every file
    try:
        save_shards(tensors, storage_writer=writer, process_group=group)
    except CheckpointException as error:
        raise save.not_written(run_dir, step, _cause(error)) from error


class LoadPlan:
    """Where the tensors of a state belong on this rank, by the parts that are to receive them.

    parts  name -> model, optimizer, or anything else, which then gets its tensors whole
    keeps  parameter -> its optimizer state is kept on this rank
    """

    def __init__(self, parts: Mapping[str, Any], keeps: Callable[[nn.Parameter], bool]) -> None:
        self._keeps = keeps
        self._models = {n: p.state_dict() for n, p in parts.items() if isinstance(p, nn.Module)}
        self._parameters = {
            name: [p for group in part.param_groups for p in group["params"]]
            for name, part in parts.items()
            if isinstance(part, Optimizer)
        }

    def needs(self, key: str) -> bool:
        """Some part of this rank takes the tensor `key`."""
        like = self.template(key)
        return not self.is_other_ranks(key) and (like is None or not like.is_meta)

    def is_other_ranks(self, key: str) -> bool:
        """It belongs to the state of an optimizer that other ranks keep."""
        parameter = self._parameter_of(key)
        return parameter is not None and not self._keeps(parameter)

    def template(self, key: str) -> torch.Tensor | None:
        """The tensor of this rank that says how `key` is sharded; None where nothing does."""
        name, _, rest = key.partition("/")
        if name in self._models:
            found: torch.Tensor | None = self._models[name].get(rest)
            return found
        parameter = self._parameter_of(key)
        return None if parameter is None else parameter.detach()

    def _parameter_of(self, key: str) -> nn.Parameter | None:
        """Whose state `key` is in an optimizer; None for all else, also for what belongs to no parameter."""
        match key.split("/"):
            case [name, "state", number, *_] if name in self._parameters and number.isdecimal():
                found: nn.Parameter = self._parameters[name][int(number)]
                return found
        return None


def load_tensors(tree: Any, shards: Path, plan: LoadPlan) -> Any:
    """The tree with the tensors that this rank wants, read from the shards of a checkpoint.

    Raise CheckpointError where they cannot be read.
    """
    keys = [key for key in _placeholders(tree) if plan.needs(key)]
    reader = ShardReader(shards)
    with _explained(shards):
        saved: Any = reader.read_metadata().state_dict_metadata
    wanted: Tensors = {}
    for key in keys:
        size, dtype, like = saved[key].size, saved[key].properties.dtype, plan.template(key)
        if like is not None and _is_sharded(like) and like.shape == size:
            wanted[key] = torch.empty_like(like, dtype=dtype, requires_grad=False)
        else:
            wanted[key] = torch.empty(size, dtype=dtype)
    with _explained(shards), warnings.catch_warnings():  # each rank reads for itself, on purpose
        warnings.filterwarnings("ignore", "torch.distributed is disabled")
        load_shards(dict(wanted), storage_reader=reader, no_dist=True)
    return _replace(tree, wanted, plan)


def shard_whole_state(state: Any, plan: LoadPlan) -> Any:
    """A whole state, for parts that hold shards: sliced as they are, without any message."""
    tree, tensors = extract_tensors(state)
    found: Tensors = {}
    for key, whole in tensors.items():
        if plan.needs(key):
            like = plan.template(key)
            found[key] = _slice(whole, like) if _is_sharded(like) and like is not None else whole
    return _replace(tree, found, plan)


@contextlib.contextmanager
def _explained(shards: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, EOFError, pickle.UnpicklingError, CheckpointException) as error:
        raise CheckpointError(
            f"{shards} cannot be read: {_cause(error)}",
            fix="mount the volume on every node; where the checkpoint is damaged, remove its folder: "
            "the one before is taken",
        ) from error


def _cause(error: BaseException) -> BaseException:
    """Of a save or load, what went wrong on the first rank that failed."""
    if isinstance(error, CheckpointException) and error.failures:
        return next(iter(error.failures.values()))[0]
    return error


def _replace(tree: Any, found: Tensors, plan: LoadPlan, path: str = "") -> Any:
    """Marks -> tensors. Those of other ranks vanish from optimizers and stay empty in models."""
    if not isinstance(tree, dict):
        return tree
    result: dict[Any, Any] = {}
    for key, value in tree.items():
        here = _join(path, key)
        if plan.is_other_ranks(here):
            continue
        if not _is_placeholder(value):
            result[key] = _replace(value, found, plan, here)
        elif here in found:
            result[key] = found[here]
        elif (empty := plan.template(here)) is not None and empty.is_meta:
            result[key] = empty
    return result


def _placeholders(tree: Any) -> list[str]:
    if not isinstance(tree, dict):
        return []
    if _is_placeholder(tree):
        return [tree[_PLACEHOLDER]]
    return [key for value in tree.values() for key in _placeholders(value)]


def _is_placeholder(value: Any) -> bool:
    return isinstance(value, dict) and _PLACEHOLDER in value


def _is_sharded(value: Any) -> bool:
    return hasattr(value, "placements")


def _slice(whole: torch.Tensor, like: Any) -> torch.Tensor:
    from torch.distributed.tensor import distribute_tensor  # noqa: PLC0415

    if whole.shape != like.shape:
        return whole
    there = whole.to(like.device_mesh.device_type)
    return distribute_tensor(there, like.device_mesh, like.placements, src_data_rank=None)


def _join(path: str, key: Any) -> str:
    return f"{path}/{key}" if path else str(key)
