"""State that no single rank holds: each rank writes its own shards, and reads the tensors that it needs.

<run>/step-120/state.pt   the tree of the state, in which a placeholder stands for each tensor
<run>/step-120/shards/    the tensors, by torch.distributed.checkpoint: readable by any number of ranks

Keys are those of the unsharded state (`model/blocks.0.mlp.0.weight`, `optimizer/state/3/exp_avg`), so that
every strategy can read what any other strategy wrote.
"""

import contextlib
import pickle
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_loader import load as load_shards
from torch.distributed.checkpoint.state_dict_saver import save as save_shards
from torch.optim import Optimizer

from dtj.checkpoint import paths, storage
from dtj.checkpoint.objects import Location
from dtj.checkpoint.shard_files import ShardReader, shard_writer
from dtj.errors import CheckpointError, DamagedError

# A placeholder is the dict {_PLACEHOLDER: key of the tensor in the shards}; nothing else in a state has it.
_PLACEHOLDER = "dtj/shard"
Tensors = dict[str, torch.Tensor]
_LISTS = (list, tuple)
# What reading damaged metadata raises, and what ShardReader raises if a checksum is wrong.
_DAMAGE = (
    *(EOFError, pickle.UnpicklingError, zipfile.BadZipFile),
    *(ValueError, LookupError, AttributeError, TypeError),
)


def extract_tensors(state: Any, path: str = "") -> tuple[Any, Tensors]:
    """(the tree with placeholders, this rank's tensors by key).

    Tensors without dimensions stay in the tree. A meta tensor belongs to another rank: placeholder only.
    """
    if isinstance(state, torch.Tensor) and (state.ndim or state.is_meta):
        return {_PLACEHOLDER: path}, {} if state.is_meta else {path: state}
    if isinstance(state, dict):
        parts = {key: extract_tensors(value, _join(path, key)) for key, value in state.items()}
        found = {k: v for _, tensors in parts.values() for k, v in tensors.items()}
        return {key: tree for key, (tree, _) in parts.items()}, found
    if type(state) in _LISTS:
        items = [extract_tensors(value, _join(path, number)) for number, value in enumerate(state)]
        found = {k: v for _, tensors in items for k, v in tensors.items()}
        return type(state)(tree for tree, _ in items), found
    return state, {}


def merge_trees(trees: list[Any]) -> Any:
    """All ranks' trees as one tree: of equal keys and places, the first rank's value is taken."""
    first = next((tree for tree in trees if not _is_placeholder(tree)), trees[0])
    if type(first) in _LISTS and all(type(each) is type(first) and len(each) == len(first) for each in trees):
        return type(first)(merge_trees(list(items)) for items in zip(*trees, strict=True))
    if not isinstance(first, dict) or _is_placeholder(first):
        return first
    keys = dict.fromkeys(key for tree in trees for key in tree)
    return {key: merge_trees([tree[key] for tree in trees if key in tree]) for key in keys}


def write(pending: Location, step: int, tensors: Tensors, *, group: Any) -> None:
    """Write this rank's tensors into the prepared folder of `step`; replicated tensors are written once.

    Returns when all ranks of the group have written. CheckpointError on all of them if one rank could not.
    """
    try:
        save_shards(tensors, storage_writer=shard_writer(pending / paths.SHARDS), process_group=group)
    except CheckpointException as error:
        raise storage.not_written(pending.parent, step, _cause(error)) from error


class LoadPlan:
    """Which tensors of a saved state this rank loads, and how they are sharded.

    parts  name -> model, optimizer, or anything else; its tensors are loaded as it has them now, else whole
    keeps  parameter -> True if this rank keeps its optimizer state
    """

    def __init__(self, parts: Mapping[str, Any], keeps: Callable[[nn.Parameter], bool]) -> None:
        self._keeps = keeps
        self._tensors = {
            path: tensor
            for name, part in parts.items()
            if not isinstance(part, Optimizer)
            for path, tensor in _tensors(part.state_dict(), name)
        }
        self._parameters = {
            name: [p for group in part.param_groups for p in group["params"]]
            for name, part in parts.items()
            if isinstance(part, Optimizer)
        }

    def needs(self, key: str) -> bool:
        """This rank loads the tensor `key`."""
        template = self.template(key)
        return not self.is_other_ranks(key) and (template is None or not template.is_meta)

    def is_other_ranks(self, key: str) -> bool:
        """`key` is optimizer state that another rank keeps."""
        parameter = self._parameter_of(key)
        return parameter is not None and not self._keeps(parameter)

    def template(self, key: str) -> torch.Tensor | None:
        """This rank's tensor, which shows how `key` is sharded here; None if there is none."""
        parameter = self._parameter_of(key)
        return self._tensors.get(key) if parameter is None else parameter.detach()

    def _parameter_of(self, key: str) -> nn.Parameter | None:
        """The parameter whose optimizer state `key` is; None if `key` is anything else.

        Also if the optimizer has fewer parameters than it had: it says so itself when it loads the state.
        """
        match key.split("/"):
            case [name, "state", number, *_] if name in self._parameters and number.isdecimal():
                parameters: list[nn.Parameter] = self._parameters[name]
                return parameters[int(number)] if int(number) < len(parameters) else None
        return None


WHOLE = LoadPlan({}, keeps=lambda _: True)  # all tensors, none of them sharded


def load_tensors(tree: Any, shards: Location, plan: LoadPlan) -> Any:
    """The tree with the tensors that this rank needs, read from the shards of a checkpoint.

    Raise DamagedError if their content is wrong, CheckpointError if they cannot be read.
    """
    keys = [key for key in _placeholders(tree) if plan.needs(key)]
    reader = ShardReader(shards)
    wanted: Tensors = {}
    with _explained(shards):
        saved: Any = reader.read_metadata().state_dict_metadata
        sizes = {key: (saved[key].size, saved[key].properties.dtype) for key in keys}
    for key, (size, dtype) in sizes.items():
        template = plan.template(key)
        if template is not None and _is_sharded(template) and template.shape == size:
            wanted[key] = torch.empty_like(template, dtype=dtype, requires_grad=False)
        else:
            wanted[key] = torch.empty(size, dtype=dtype)
    with _explained(shards), warnings.catch_warnings():  # each rank reads by itself, on purpose
        warnings.filterwarnings("ignore", "torch.distributed is disabled")
        load_shards(dict(wanted), storage_reader=reader, no_dist=True)
    return _replace(tree, wanted, plan)


def shapes(tree: Any, shards: Location) -> Any:
    """The tree with tensors without memory (meta) for placeholders; errors as of `load_tensors`."""
    with _explained(shards):
        saved: Any = ShardReader(shards).read_metadata().state_dict_metadata
        found = {
            key: torch.empty(saved[key].size, dtype=saved[key].properties.dtype, device="meta")
            for key in _placeholders(tree)
        }
    return _replace(tree, found, WHOLE)


def shard_whole_state(state: Any, plan: LoadPlan) -> Any:
    """Shard a whole state for parts that hold shards: each rank slices its own copy, without messages."""
    tree, tensors = extract_tensors(state)
    found: Tensors = {}
    for key, whole in tensors.items():
        if plan.needs(key):
            template = plan.template(key)
            is_sharded = template is not None and _is_sharded(template)
            found[key] = _slice(whole, template) if is_sharded else whole
    return _replace(tree, found, plan)


@contextlib.contextmanager
def _explained(shards: Location) -> Iterator[None]:
    try:
        yield
    except (OSError, CheckpointException, *_DAMAGE) as error:
        cause = _cause(error)
        if isinstance(cause, _DAMAGE):
            raise DamagedError(
                f"{shards} is damaged: {cause}", fix="remove its checkpoint, or restore it from a copy"
            ) from error
        raise CheckpointError(
            f"{shards} cannot be read: {cause}",
            fix="mount the volume on every node; if the checkpoint is damaged, remove its folder to resume "
            "from the one before it",
        ) from error


def _cause(error: BaseException) -> BaseException:
    """The error of the first rank that failed in a save or load."""
    if isinstance(error, CheckpointException) and error.failures:
        return next(iter(error.failures.values()))[0]
    return error


def _replace(tree: Any, found: Tensors, plan: LoadPlan, path: str = "") -> Any:
    """Replace placeholders by tensors. Other ranks' tensors are left out of optimizers, meta in models."""
    if type(tree) in _LISTS:
        items = _replace(dict(enumerate(tree)), found, plan, path)
        return type(tree)(items.get(number) for number in range(len(tree)))
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


def _tensors(state: Any, path: str) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(state, torch.Tensor):
        yield path, state
    elif isinstance(state, dict) or type(state) in _LISTS:
        for key, value in state.items() if isinstance(state, dict) else enumerate(state):
            yield from _tensors(value, _join(path, key))


def _placeholders(tree: Any) -> list[str]:
    if type(tree) in _LISTS:
        return [key for value in tree for key in _placeholders(value)]
    if not isinstance(tree, dict):
        return []
    if _is_placeholder(tree):
        return [tree[_PLACEHOLDER]]
    return [key for value in tree.values() for key in _placeholders(value)]


def _is_placeholder(value: Any) -> bool:
    return isinstance(value, dict) and _PLACEHOLDER in value


def _is_sharded(value: Any) -> bool:
    return hasattr(value, "placements")


def _slice(whole: torch.Tensor, template: Any) -> torch.Tensor:
    from torch.distributed.tensor import distribute_tensor  # noqa: PLC0415

    if whole.shape != template.shape:
        return whole
    there = whole.to(template.device_mesh.device_type)
    return distribute_tensor(there, template.device_mesh, template.placements, src_data_rank=None)


def _join(path: str, key: Any) -> str:
    return f"{path}/{key}" if path else str(key)
