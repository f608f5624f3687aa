"""Export a model's weights from a checkpoint, for programs that know nothing of dtj.

a file     .safetensors, or any other suffix for torch.save
a folder   as transformers writes it: model.safetensors, or several files and an index

Only the tensors of one file are in memory at a time, and never those of an optimizer.
"""

import contextlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from dtj.checkpoint import paths, reader
from dtj.checkpoint.objects import Location
from dtj.checkpoint.weights import safetensors
from dtj.errors import CheckpointError, DtjError, RecipeError

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True, kw_only=True)
class Saved:
    """A model in a checkpoint.

    tree    tensors by name: mapped from the state file, or placeholders for those in shards
    shards  the folder of its shards, None if it has none
    tied    name -> the name whose tensor it has, too
    """

    part: str
    tree: dict[str, Any]
    shards: Location | None
    tied: dict[str, str]

    def shapes(self) -> Tensors:
        """Tensors without memory (meta); tied ones once."""
        found = self.tree
        if self.shards is not None:
            from dtj.checkpoint import sharded  # noqa: PLC0415 - half a second of imports

            found = sharded.shapes({self.part: self.tree}, self.shards)[self.part]
        if not isinstance(found, dict) or not all(isinstance(v, torch.Tensor) for v in found.values()):
            raise RecipeError(
                f"the part {self.part!r} is not a model",
                fix="name a part that is a model, usually --part model",
            )
        return {name: value.to("meta") for name, value in found.items() if name not in self.tied}

    def read(self, names: Iterable[str]) -> Tensors:
        """These tensors, on the CPU."""
        chosen = {name: self.tree[name] for name in names}
        if self.shards is None:
            return chosen
        from dtj.checkpoint import sharded  # noqa: PLC0415

        found: Tensors = sharded.load_tensors({self.part: chosen}, self.shards, sharded.WHOLE)[self.part]
        return found


def export(
    source: Location,
    target: Path,
    *,
    part: str,
    dtype: torch.dtype | None = None,
    max_file_bytes: int | None = None,
) -> int:
    """Write one part of a checkpoint to a file or folder; returns the number of its tensors, tied ones once.

    source          a step-N folder, or the folder of a run, whose newest checkpoint is used; or its URL
    target          .safetensors, any other suffix for torch.save; without a suffix, or if it exists, a folder
    dtype           of floating-point tensors; None: as they were trained
    max_file_bytes  size of the largest file in a folder, unless one tensor is larger; None: one file
    """
    checkpoint = _newest(source)
    try:
        return _export(_open(checkpoint, part), target, dtype, max_file_bytes)
    except DtjError as error:
        with contextlib.suppress(OSError):
            if checkpoint != source and not checkpoint.exists():
                raise CheckpointError(
                    f"{checkpoint} was removed while it was read: its run has saved newer ones",
                    fix="export again; if that fails too, let the run keep more of them (--keep)",
                ) from error
        raise


def _export(saved: Saved, target: Path, dtype: torch.dtype | None, max_file_bytes: int | None) -> int:
    shapes = {name: _converted(tensor, dtype) for name, tensor in saved.shapes().items()}
    if not target.suffix or target.is_dir():
        _write_folder(saved, shapes, target, dtype, max_file_bytes)
    elif target.suffix == ".safetensors":
        _write(saved, shapes, target, dtype)
    else:
        weights = {name: _converted(tensor, dtype) for name, tensor in saved.read(shapes).items()}
        torch.save(weights | {name: weights[first] for name, first in saved.tied.items()}, target)
    return len(shapes)


def _write_folder(
    saved: Saved, shapes: Tensors, folder: Path, dtype: torch.dtype | None, most: int | None
) -> None:
    if found := sorted(folder.glob("*.safetensors*")):
        raise RecipeError(
            f"there are weights in {folder} already, e.g. {found[0].name}", fix="name another folder"
        )
    folder.mkdir(exist_ok=True)
    files = _divide(shapes, most)
    for file, names in files.items():
        _write(saved, names, folder / file, dtype)
    if len(files) > 1:
        index = {
            "metadata": {"total_size": sum(tensor.nbytes for tensor in shapes.values())},
            "weight_map": {name: file for file, names in files.items() for name in names},
        }
        (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")


def _open(folder: Location, part: str) -> Saved:
    state, shards = reader.mapped(folder)
    if part not in state["parts"]:
        raise RecipeError(
            f"the checkpoint has no part {part!r}",
            fix=f"--part is one of {', '.join(sorted(state['parts']))}",
        )
    return Saved(part=part, tree=state["parts"][part], shards=shards, tied=state["tied"].get(part, {}))


def _divide(shapes: Tensors, most: int | None) -> dict[str, list[str]]:
    """File name -> names of its tensors, in order; each file has at most `most` bytes, or one tensor."""
    groups: list[list[str]] = [[]]
    size = 0
    for name, tensor in shapes.items():
        if most is not None and groups[-1] and size + tensor.nbytes > most:
            groups.append([])
            size = 0
        groups[-1].append(name)
        size += tensor.nbytes
    if len(groups) == 1:
        return {"model.safetensors": groups[0]}
    total = len(groups)
    return {f"model-{n:05d}-of-{total:05d}.safetensors": names for n, names in enumerate(groups, 1)}


def _write(saved: Saved, names: Iterable[str], file: Path, dtype: torch.dtype | None) -> None:
    save_file = safetensors("safetensors.torch").save_file
    # A copy, unless they were read for this file: the format forbids tensors that share memory.
    is_copied = saved.shards is None
    weights = {name: _converted(tensor, dtype, copy=is_copied) for name, tensor in saved.read(names).items()}
    save_file(weights, file, metadata={"format": "pt"})  # transformers refuses files without it


def _converted(tensor: torch.Tensor, dtype: torch.dtype | None, *, copy: bool = False) -> torch.Tensor:
    wanted = dtype if dtype is not None and tensor.is_floating_point() else tensor.dtype
    return tensor.to(wanted, copy=copy, memory_format=torch.contiguous_format)


def _newest(source: Location) -> Location:
    if paths.step_of(source.name) is not None:
        return source
    found = reader.committed(reader.newest_run(source))
    if not found:
        raise RecipeError(
            f"there is no checkpoint in {source}", fix="name a run's folder or one of its step-N"
        )
    return found[0]
