"""State -> one committed checkpoint, or none: a crash at any point leaves the one before it.

write step-N.tmp/state.pt, fsync it and its folder   nothing of this name is ever read
rename step-N.tmp to step-N, fsync the run's folder  the commit: one atomic operation
prune                                                 older ones are renamed to .tmp before they are deleted
"""

import os
import shutil
from pathlib import Path
from typing import Any

import torch

from dtj.checkpoint import layout
from dtj.errors import CheckpointError, RecipeError

# What torch.load(weights_only=True) gives back; subclasses do not load (numpy's float64 is a float).
_LEAVES = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size)


def commit(run_dir: Path, step: int, state: dict[str, Any]) -> Path:
    """Write `state` as the checkpoint of `step` and return its folder.

    Called by one process of the whole job. Raise CheckpointError where the disk does not take it.
    """
    pending, final = run_dir / layout.pending_name_of(step), run_dir / layout.name_of(step)
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        _write(pending, state)
        if final.exists():  # it was found unreadable and its step was trained again
            _discard(final)
        pending.rename(final)
        _fsync(run_dir)
        for name in layout.to_remove([child.name for child in run_dir.iterdir()], committed=step):
            _discard(run_dir / name)
    except OSError as error:
        raise CheckpointError(
            f"checkpoint {final} could not be written: {error.strerror or error}",
            fix="check that the volume is mounted, writable for this user and has space",
        ) from error
    return final


def check_loadable(value: Any, path: str) -> None:
    """Raise RecipeError for state that could be saved but not loaded: better now than after the crash."""
    if type(value) in _LEAVES or isinstance(value, torch.Tensor):
        return
    if isinstance(value, dict):
        for key, item in value.items():
            check_loadable(item, f"{path}[{key!r}]")
    elif type(value) in {list, tuple, set}:
        for number, item in enumerate(value):
            check_loadable(item, f"{path}[{number}]")
    else:
        raise RecipeError(
            f"state {path} is a {type(value).__qualname__}, which a checkpoint cannot hold safely",
            fix="make its state_dict of tensors, numbers, strings, lists and dicts, e.g. float(value)",
        )


def _write(folder: Path, state: dict[str, Any]) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    with (folder / layout.STATE_FILE).open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    _fsync(folder)


def _discard(folder: Path) -> None:
    """Delete a folder such that a crash in between leaves no half of it under a committed name."""
    if layout.step_of(folder.name) is not None:
        doomed = folder.with_name(f"{folder.name}-old.tmp")
        shutil.rmtree(doomed, ignore_errors=True)
        folder = folder.rename(doomed)
    shutil.rmtree(folder, ignore_errors=True)


def _fsync(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
