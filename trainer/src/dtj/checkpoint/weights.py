"""Export a model's weights as one file; import them from one file, or as transformers writes them.

.safetensors   names and tensors, nothing that could be executed; other frameworks read it (extra: export)
.index.json    the files over which a large model is distributed
.pt, .bin      torch.save of a state_dict, loaded with weights_only
a folder       with a model.safetensors, pytorch_model.bin or the index of several files
"""

import json
import re
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dtj.checkpoint import paths, reader
from dtj.checkpoint.objects import Location
from dtj.errors import RecipeError

Weights = dict[str, torch.Tensor]
_IN_FOLDER = (
    *("model.safetensors.index.json", "model.safetensors"),
    *("pytorch_model.bin.index.json", "pytorch_model.bin"),
)


def export(source: Location, target: Path, *, part: str) -> int:
    """Write one part of a checkpoint to a file; returns the number of its tensors.

    source  a step-N folder, or the folder of a run, whose newest checkpoint is used; or its URL
    target  .safetensors, or any other suffix for torch.save
    """
    state = reader.whole(_newest(source), only=part)
    if part not in state["parts"]:
        raise RecipeError(
            f"the checkpoint has no part {part!r}",
            fix=f"--part is one of {', '.join(sorted(state['parts']))}",
        )
    weights = state["parts"][part]
    if not isinstance(weights, dict) or not all(isinstance(v, torch.Tensor) for v in weights.values()):
        raise RecipeError(
            f"the part {part!r} is not a model", fix="name a part that is a model, usually --part model"
        )
    if target.suffix == ".safetensors":
        # Tied weights share memory, which the format does not allow.
        _safetensors().save_file({name: v.contiguous().clone() for name, v in weights.items()}, target)
    else:
        torch.save(dict(weights), target)
    return len(weights)


def read(path: Path) -> Weights:
    """Tensors by name, on the CPU, of a file or folder; RecipeError if it holds anything else."""
    if path.is_dir():
        path = next((path / name for name in _IN_FOLDER if (path / name).is_file()), path / _IN_FOLDER[1])
    if not path.is_file():
        raise RecipeError(f"there is no file {path}", fix="check --weights")
    if path.suffix == ".json":
        return {name: tensor for file in _files_of(path) for name, tensor in read(file).items()}
    if path.suffix == ".safetensors":
        safetensors = _safetensors()
        try:
            found: Any = safetensors.load_file(path)
        except Exception as error:  # a damaged file can raise any exception
            raise RecipeError(
                f"{path} is not a safetensors file: {error}",
                fix="download or export it again: it may be truncated",
            ) from error
    else:
        try:
            found = torch.load(path, map_location="cpu", weights_only=True)
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
    return {name.removeprefix("module.").removeprefix("_orig_mod."): v for name, v in found.items()}


def assign(model: nn.Module, path: Path) -> None:
    """Load a file of weights into a model that is not sharded yet and is on the CPU.

    RecipeError if names or shapes differ. Of weights that the model ties, the file needs one. What a model of
    transformers ignores in files of its older versions (masks, frequencies) is ignored.
    """
    found = read(path)
    wanted = model.state_dict()
    given = {wanted[name].data_ptr() for name in wanted.keys() & found.keys()}
    ignored = getattr(model, "_keys_to_ignore_on_load_unexpected", None) or ()
    lacking = [name for name in wanted.keys() - found.keys() if wanted[name].data_ptr() not in given]
    unknown = [n for n in found.keys() - wanted.keys() if not any(re.search(each, n) for each in ignored)]
    problems = [f"lacks {name}" for name in lacking]
    problems += [f"has {name}, which the model does not have" for name in unknown]
    problems += [
        f"has {name} of shape {tuple(found[name].shape)}, not {tuple(wanted[name].shape)}"
        for name in wanted.keys() & found.keys()
        if found[name].shape != wanted[name].shape
    ]
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise RecipeError(f"{path} {min(problems)}{more}", fix="build the model that has these weights")
    model.load_state_dict(found, strict=False)


def _files_of(index: Path) -> list[Path]:
    try:
        names = set(json.loads(index.read_text())["weight_map"].values())
        return [index.parent / name for name in sorted(names)]
    except (ValueError, LookupError, AttributeError, TypeError) as error:
        raise RecipeError(
            f"{index} is not an index of weights: {error!r}", fix="download it again: it may be truncated"
        ) from error


def _newest(source: Location) -> Location:
    if paths.step_of(source.name) is not None:
        return source
    found = reader.committed(reader.newest_run(source))
    if not found:
        raise RecipeError(
            f"there is no checkpoint in {source}", fix="name a run's folder or one of its step-N"
        )
    return found[0]


def _safetensors() -> Any:
    try:
        from safetensors import torch as safetensors  # noqa: PLC0415 - an extra
    except ModuleNotFoundError as error:
        raise RecipeError(
            "safetensors is not installed", fix="pip install safetensors, or use a file that ends in .pt"
        ) from error
    return safetensors
