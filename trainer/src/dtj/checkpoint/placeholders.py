"""A state without its tensors: a tree in which a placeholder stands for each of them.

Paths are those of the unsharded state: `model/blocks.0.mlp.0.weight`, `optimizer/state/3/exp_avg`.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from typing import Any

import torch

from dtj.errors import RecipeError

# A placeholder is the dict {_PLACEHOLDER: path of the tensor}; nothing else in a state has it.
_PLACEHOLDER = "dtj/shard"
_LISTS = (list, tuple)
_DICTS = (OrderedDict, Counter)


def extract(
    state: Any, path: str = "", *, takes: Callable[[torch.Tensor], bool] = lambda _: True
) -> tuple[Any, list[tuple[str, torch.Tensor]]]:
    """(the tree, its tensors with their paths). takes: False for tensors that stay in the tree."""
    if isinstance(state, torch.Tensor) and takes(state):
        return {_PLACEHOLDER: path}, [(path, state)]
    parts = {key: extract(value, _join(path, key), takes=takes) for key, value in _items(state)}
    found = [each for _, tensors in parts.values() for each in tensors]
    return _alike(state, {key: tree for key, (tree, _) in parts.items()}), found


def by_path(tensors: Iterable[tuple[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """RecipeError if two have the same path: only one of them could be loaded again."""
    found: dict[str, torch.Tensor] = {}
    for path, tensor in tensors:
        if path in found:
            raise RecipeError(
                f"the state holds two tensors at {path}",
                fix='use keys that differ as text: 1 and "1" do not, nor do "a/b" and a "b" below "a"',
            )
        found[path] = tensor
    return found


def fill(
    tree: Any,
    tensor_at: Callable[[str], torch.Tensor | None],
    *,
    omits: Callable[[str], bool] = lambda _: False,
    path: str = "",
) -> Any:
    """Replace the placeholders by tensors; those for which there is None are left out.

    A tensor that is in the tree is replaced, too, unless there is None for it.

    omits  path -> True for what is left out with all below it
    """
    result: dict[Any, Any] = {}
    for key, value in _items(tree):
        here = _join(path, key)
        if omits(here):
            continue
        is_placeholder = _is_placeholder(value)
        if not is_placeholder and not isinstance(value, torch.Tensor):
            result[key] = fill(value, tensor_at, omits=omits, path=here)
        elif (found := tensor_at(here)) is not None:
            result[key] = found
        elif not is_placeholder:
            result[key] = value
    return _alike(tree, result)


def paths_in(tree: Any) -> list[str]:
    """The paths of all placeholders."""
    if _is_placeholder(tree):
        return [tree[_PLACEHOLDER]]
    return [path for _, value in _items(tree) for path in paths_in(value)]


def merge(trees: list[Any]) -> Any:
    """All ranks' trees as one tree: of equal keys and places, the first rank's value is taken."""
    first = next((tree for tree in trees if not _is_placeholder(tree)), trees[0])
    if type(first) in _LISTS and all(type(each) is type(first) and len(each) == len(first) for each in trees):
        return type(first)(merge(list(items)) for items in zip(*trees, strict=True))
    if not isinstance(first, dict) or _is_placeholder(first):
        return first
    keys = dict.fromkeys(key for tree in trees for key in tree)
    return {key: merge([tree[key] for tree in trees if key in tree]) for key in keys}


def memory_of(tensor: torch.Tensor) -> tuple[Any, ...] | None:
    """Equal for tensors that are the same values in the same memory, as tied weights; None if unknown."""
    if tensor.layout != torch.strided or not tensor.data_ptr():
        return None
    return tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()


def _items(tree: Any) -> Iterable[tuple[Any, Any]]:
    """What a container holds, by keys or numbers; nothing for anything else."""
    if isinstance(tree, dict):
        return tree.items()
    return enumerate(tree) if type(tree) in _LISTS else ()


def _alike(tree: Any, items: dict[Any, Any]) -> Any:
    """A container of the same type with other items; anything else as it is."""
    if type(tree) in _LISTS:
        return type(tree)(items.get(number) for number in range(len(tree)))
    if not isinstance(tree, dict):
        return tree
    return type(tree)(items) if type(tree) in _DICTS else items


def _is_placeholder(value: Any) -> bool:
    return isinstance(value, dict) and _PLACEHOLDER in value


def _join(path: str, key: Any) -> str:
    return f"{path}/{key}" if path else str(key)
