"""State that no single rank holds: each rank writes its own shards, and reads the tensors that it needs.

<run>/step-120/state.pt   the tree of the state, in which a placeholder stands for each tensor
<run>/step-120/shards/    the tensors, by torch.distributed.checkpoint: readable by any number of ranks

Keys are the paths of placeholders.py, those of the unsharded state, so that every strategy can read what any
other strategy wrote.
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

from dtj.checkpoint import paths, placeholders, storage
from dtj.checkpoint.objects import Location
from dtj.checkpoint.shard_files import ShardReader, shard_writer
from dtj.errors import CheckpointError, DamagedError
from dtj.parallel.names import state_of
from dtj.parallel.strategy import as_shard, parameters_of, part_of

Tensors = dict[str, torch.Tensor]
# What reading damaged metadata raises, and what ShardReader raises if a checksum is wrong.
_DAMAGE = (
    *(EOFError, pickle.UnpicklingError, zipfile.BadZipFile),
    *(ValueError, LookupError, AttributeError, TypeError),
)


def extract_tensors(state: Any) -> tuple[Any, Tensors]:
    """(the tree with placeholders, this rank's tensors by key). RecipeError if two have the same key.

    Tensors without dimensions stay in the tree. A meta tensor belongs to another rank: placeholder only.
    """
    tree, found = placeholders.extract(state, takes=lambda tensor: bool(tensor.ndim) or tensor.is_meta)
    return tree, {key: tensor for key, tensor in placeholders.by_path(found).items() if not tensor.is_meta}


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

    parts  name -> model, optimizer, or anything else; its tensors are loaded as it has them now, or as its
           method `shard_templates` says, else whole
    keeps  parameter -> True if this rank keeps its optimizer state
    """

    def __init__(self, parts: Mapping[str, Any], keeps: Callable[[nn.Parameter], bool]) -> None:
        self._keeps = keeps
        self._tensors = {
            path: tensor
            for name, part in parts.items()
            if not isinstance(part, Optimizer)
            for path, tensor in placeholders.extract(_templates_of(part), name)[1]
        }
        self._parameters = {
            name: parameters_of(part) for name, part in parts.items() if isinstance(part, Optimizer)
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

    def shard_like(self, key: str, shape: torch.Size) -> torch.Tensor | None:
        """The template of a tensor of which this rank holds a shard; None if it needs all of it."""
        template = self.template(key)
        is_sharded = template is not None and hasattr(template, "placements") and template.shape == shape
        return template if is_sharded else None

    def _parameter_of(self, key: str) -> nn.Parameter | None:
        """The parameter whose optimizer state `key` is; None if `key` is anything else.

        Also if the optimizer has fewer parameters than it had: it says so itself when it loads the state.
        """
        match key.split("/"):
            case [name, "state", number, *_] if name in self._parameters and number.isdecimal():
                parameters = self._parameters[name]
                return parameters[int(number)] if int(number) < len(parameters) else None
        return None


def _templates_of(part: Any) -> Any:
    return part.shard_templates() if hasattr(part, "shard_templates") else state_of(part)


WHOLE = LoadPlan({}, keeps=lambda _: True)  # all tensors, none of them sharded


def load_tensors(tree: Any, shards: Location, plan: LoadPlan) -> Any:
    """The tree with the tensors that this rank needs, read from the shards of a checkpoint.

    Raise DamagedError if their content is wrong, CheckpointError if they cannot be read.
    """
    keys = [key for key in placeholders.paths_in(tree) if plan.needs(key)]
    reader = ShardReader(shards)
    wanted: Tensors = {}
    with _explained(shards):
        saved: Any = reader.read_metadata().state_dict_metadata
        sizes = {key: (saved[key].size, saved[key].properties.dtype) for key in keys}
    for key, (size, dtype) in sizes.items():
        if (template := plan.shard_like(key, size)) is not None:
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
            for key in placeholders.paths_in(tree)
        }
    return _replace(tree, found, WHOLE)


def shard_whole_state(state: Any, plan: LoadPlan) -> Any:
    """Shard a whole state for parts that hold shards: each rank slices its own copy, without messages."""
    tree, tensors = extract_tensors(state)
    found: Tensors = {}
    for key, whole in tensors.items():
        if plan.needs(key):
            template = plan.shard_like(key, whole.shape)
            found[key] = whole if template is None else as_shard(part_of(whole, template).clone(), template)
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


def _replace(tree: Any, found: Tensors, plan: LoadPlan) -> Any:
    """Replace placeholders by tensors. Other ranks' tensors are left out of optimizers, meta in models."""

    def tensor_at(key: str) -> torch.Tensor | None:
        empty = plan.template(key)
        return found.get(key, empty if empty is not None and empty.is_meta else None)

    return placeholders.fill(tree, tensor_at, omits=plan.is_other_ranks)
