"""Export and import a model's weights as one file.

.safetensors   names and tensors, nothing that could be executed; other frameworks read it (extra: export)
.pt            torch.save of a state_dict, loaded with weights_only
"""

from pathlib import Path
from typing import Any

import torch
from torch import nn

from dtj.checkpoint import paths, reader
from dtj.errors import RecipeError

Weights = dict[str, torch.Tensor]


def export(source: Path, target: Path, *, part: str) -> int:
    """Write one part of a checkpoint to a file; returns the number of its tensors.

    source  a step-N folder, or the folder of a run, whose newest checkpoint is used
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
    """Tensors by name, on the CPU; RecipeError if the file holds anything else."""
    if not path.is_file():
        raise RecipeError(f"there is no file {path}", fix="check --weights")
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

    RecipeError if names or shapes differ.
    """
    found = read(path)
    wanted = model.state_dict()
    problems = [f"lacks {name}" for name in wanted.keys() - found.keys()]
    problems += [f"has {name}, which the model does not have" for name in found.keys() - wanted.keys()]
    problems += [
        f"has {name} of shape {tuple(found[name].shape)}, not {tuple(wanted[name].shape)}"
        for name in wanted.keys() & found.keys()
        if found[name].shape != wanted[name].shape
    ]
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise RecipeError(f"{path} {min(problems)}{more}", fix="build the model that has these weights")
    model.load_state_dict(found)


def _newest(source: Path) -> Path:
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
