"""Load a model's initial weights from one file, or from a folder as transformers writes it.

.safetensors   names and tensors, nothing that could be executed (extra: export)
.index.json    the files over which a large model is distributed
.pt, .bin      torch.save of a state_dict, loaded with weights_only
a folder       with a model.safetensors, pytorch_model.bin or the index of several files

Files are mapped into memory, not read: a rank only reads what it copies, the rows of its own shards.
"""

import json
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping, Set
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dtj.errors import RecipeError, package
from dtj.parallel import deferred
from dtj.parallel.strategy import local_part, part_of

_IN_FOLDER = (
    *("model.safetensors.index.json", "model.safetensors"),
    *("pytorch_model.bin.index.json", "pytorch_model.bin"),
)
_PREFIXES = ("", "module.", "_orig_mod.", "module._orig_mod.", "_orig_mod.module.")


class Weights(Mapping[str, torch.Tensor]):
    """Tensors by name, on the CPU. Each is mapped from its file when it is asked for.

    A page that was read counts as memory of this process until its mapping is gone: do not keep tensors of
    large files.
    """

    def __init__(self, mapped: dict[str, Callable[[], torch.Tensor]]) -> None:
        self._mapped = mapped

    def __getitem__(self, name: str) -> torch.Tensor:
        return self._mapped[name]()

    def __iter__(self) -> Iterator[str]:
        return iter(self._mapped)

    def __len__(self) -> int:
        return len(self._mapped)


def read(path: Path) -> Weights:
    """What a file or folder holds; RecipeError if that is anything but tensors by name."""
    return Weights(
        {
            name: mapped
            for file in _files(path)
            for name, mapped in (_safetensors if file.suffix == ".safetensors" else _pickled)(file).items()
        }
    )


@torch.no_grad()
def load(model: nn.Module, device: torch.device, *, path: Path) -> None:
    """Load weights into a model that is whole or sharded. Every rank reads by itself.

    device  where parameters get their memory if they have none yet
    RecipeError if names or shapes differ. Of weights that the model ties, the file needs one. What a model of
    transformers ignores in files of its older versions (masks, frequencies) is ignored.
    """
    deferred.allocate(model, device)
    wanted: dict[str, torch.Tensor] = model.state_dict(keep_vars=True)
    found = _without_prefix(read(path), wanted.keys())
    _check(model, wanted, found, path)
    for name in wanted.keys() & found.keys():
        target = wanted[name].detach()
        local_part(target).copy_(part_of(found[name], target))


def _without_prefix(found: Weights, wanted: Set[str]) -> Weights:
    """Weights without what DDP or torch.compile have put before each name.

    The model may have names that begin with a prefix: what fits the most of its names is taken.
    """
    prefix = max(_PREFIXES, key=lambda each: len(wanted & {name.removeprefix(each) for name in found}))
    return Weights({name.removeprefix(prefix): mapped for name, mapped in found._mapped.items()})


def _check(model: nn.Module, wanted: dict[str, torch.Tensor], found: Weights, path: Path) -> None:
    given = {wanted[name] for name in wanted.keys() & found.keys()}  # by identity: tied names are one tensor
    ignored = getattr(model, "_keys_to_ignore_on_load_unexpected", None) or ()
    unknown = [n for n in found.keys() - wanted.keys() if not any(re.search(each, n) for each in ignored)]
    problems = [f"lacks {name}" for name, tensor in wanted.items() if tensor not in given]
    problems += [f"has {name}, which the model does not have" for name in unknown]
    for name in wanted.keys() & found.keys():
        if (shape := found[name].shape) != wanted[name].shape:
            problems.append(f"has {name} of shape {tuple(shape)}, not {tuple(wanted[name].shape)}")
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise RecipeError(f"{path} {min(problems)}{more}", fix="build the model that has these weights")


def _files(path: Path) -> list[Path]:
    if path.is_dir():
        path = next((path / name for name in _IN_FOLDER if (path / name).is_file()), path / _IN_FOLDER[1])
    if not path.is_file():
        raise RecipeError(f"there is no file {path}", fix="check --weights")
    if path.suffix != ".json":
        return [path]
    try:
        names = set(json.loads(path.read_text())["weight_map"].values())
        return [path.parent / name for name in sorted(names)]
    except (ValueError, LookupError, AttributeError, TypeError) as error:
        raise RecipeError(
            f"{path} is not an index of weights: {error!r}", fix="download it again: it may be truncated"
        ) from error


def _safetensors(path: Path) -> dict[str, Callable[[], torch.Tensor]]:
    safe_open = safetensors("safetensors").safe_open

    def mapped(name: str) -> torch.Tensor:
        with safe_open(path, framework="pt") as file:
            found: torch.Tensor = file.get_tensor(name)
            return found

    try:
        with safe_open(path, framework="pt") as file:
            return {name: partial(mapped, name) for name in file.keys()}  # noqa: SIM118 - not a dict
    except Exception as error:  # a damaged file can raise any exception
        raise RecipeError(
            f"{path} is not a safetensors file: {error}",
            fix="download or export it again: it may be truncated",
        ) from error


def safetensors(module: str) -> Any:
    """A module of the package of that name."""
    fix = "pip install safetensors, or use a file that ends in .pt"
    return package(module, "safetensors is not installed", fix=fix)


def _pickled(path: Path) -> dict[str, Callable[[], torch.Tensor]]:
    try:
        found = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except Exception as error:  # a damaged file can raise any exception
        raise RecipeError(
            f"{path} is not a state_dict: {error}",
            fix="save it with torch.save(model.state_dict(), path)",
        ) from error
    if not isinstance(found, dict) or not all(isinstance(v, torch.Tensor) for v in found.values()):
        raise RecipeError(
            f"{path} holds a {type(found).__name__}, expected tensors by name",
            fix="save model.state_dict(), not the model or a whole checkpoint",
        )
    return {name: partial(found.__getitem__, name) for name in found}
