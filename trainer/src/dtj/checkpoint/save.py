"""State -> one committed checkpoint, or none: after a crash at any point the previous checkpoint is intact.

prepare  create step-N.tmp                                    a folder of this name is never read
write    state.pt and shards into it, fsync them
commit   rename step-N.tmp to step-N, fsync the run's folder  one atomic operation
prune    rename older checkpoints to .tmp, then delete them
"""

import contextlib
import os
import shutil
from collections import Counter, OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from dtj.checkpoint import paths
from dtj.errors import CheckpointError, RecipeError

# Types that torch.load(weights_only=True) loads. Subclasses do not load (numpy's float64 is a float).
_LEAVES = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size)
_DICTS = (dict, OrderedDict, Counter)


def prepare(run_dir: Path, step: int) -> Path:
    """Create the empty folder to write into. Only rank 0 calls this, `commit` and `abandon`."""
    pending = run_dir / paths.pending_name_of(step)
    with _explained(run_dir, step):
        run_dir.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(pending, ignore_errors=True)
        pending.mkdir()
    return pending


def commit(
    run_dir: Path, step: int, state: dict[str, Any], *, keep: int = paths.KEEP, best: int | None = None
) -> Path:
    """Write `state` into the prepared folder, commit that as the checkpoint of `step`, and return its path.

    keep, best  how many checkpoints to keep, and the step of one more to keep
    Raise CheckpointError if it cannot be written; then no part of it is left.
    """
    pending, final = run_dir / paths.pending_name_of(step), run_dir / paths.name_of(step)
    with _explained(run_dir, step):
        _write(pending, state)
        if final.exists():  # an unreadable one, whose step was trained again
            _discard(final)
        pending.rename(final)
        _fsync(run_dir)
        names = [child.name for child in run_dir.iterdir()]
        for name in paths.to_remove(names, committed=step, keep=keep, best=best):
            _discard(run_dir / name)
    return final


def abandon(run_dir: Path, step: int) -> None:
    """Delete an unfinished checkpoint, to free its space."""
    shutil.rmtree(run_dir / paths.pending_name_of(step), ignore_errors=True)


def check_loadable(value: Any, path: str) -> None:
    """Raise RecipeError for state that could be saved but not loaded: better now than after a crash."""
    if type(value) in _LEAVES or isinstance(value, torch.Tensor):
        return
    if type(value) in _DICTS:
        for key, item in value.items():
            check_loadable(key, f"{path}'s key {key!r}")
            check_loadable(item, f"{path}[{key!r}]")
    elif type(value) in {list, tuple, set}:
        for number, item in enumerate(value):
            check_loadable(item, f"{path}[{number}]")
    else:
        raise RecipeError(
            f"state {path} is a {type(value).__qualname__}, which cannot be loaded safely from a checkpoint",
            fix="build its state_dict from tensors, numbers, strings, lists and plain dicts, "
            "e.g. float(value), dict(value)",
        )


def not_written(run_dir: Path, step: int, reason: object) -> CheckpointError:
    """The error for a checkpoint of `step` that could not be written."""
    return CheckpointError(
        f"checkpoint {run_dir / paths.name_of(step)} could not be written: {reason}",
        fix="check that the volume is mounted on every node, has space, and that this user may write to it",
    )


@contextlib.contextmanager
def _explained(run_dir: Path, step: int) -> Iterator[None]:
    try:
        yield
    except (OSError, RuntimeError) as error:  # torch's writer hides the disk's error in a RuntimeError
        abandon(run_dir, step)
        cause = error if isinstance(error, OSError) else error.__context__
        reason = cause.strerror if isinstance(cause, OSError) else None
        raise not_written(run_dir, step, reason or error) from error


def _write(folder: Path, state: dict[str, Any]) -> None:
    with (folder / paths.STATE_FILE).open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    for shards in folder.glob(paths.SHARDS):
        _fsync(shards)
    _fsync(folder)


def _discard(folder: Path) -> None:
    """Delete a folder such that a crash never leaves half of it under a committed name."""
    if paths.step_of(folder.name) is not None:
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
