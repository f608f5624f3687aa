"""Find and read the newest readable checkpoint, of this run or else of the run to resume from.

Only rank 0 searches. The other ranks read the same file, or get its content from rank 0 (checkpointer.py): so
all ranks start from the same step, even if some of them see another disk.
"""

import contextlib
import errno
import pickle
import zipfile
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from dtj.checkpoint import paths, storage
from dtj.checkpoint.objects import Location
from dtj.errors import CheckpointError, RecipeError

# Errors that mean a file is missing. All others may be temporary: of a network volume also EIO.
_MISSING = {errno.ENOENT, errno.ENOTDIR, errno.EISDIR}


@dataclass(frozen=True, kw_only=True)
class Found:
    """A checkpoint that was read and checked.

    state   the content of its state file, on the CPU
    shards  the folder of its shards, None if it has none
    """

    folder: Location
    state: dict[str, Any]
    shards: Location | None


def find(
    run_dir: Location | None,
    resume_dir: Location | None,
    *,
    warn: Callable[[str], None],
    skip: Collection[Location] = (),
) -> Found | None:
    """The run's own newest checkpoint, else the newest of `resume_dir`, else None.

    skip  folders of checkpoints whose shards were found damaged
    Damaged checkpoints are skipped with a warning. Raise RecipeError if `resume_dir` is set but has no
    readable checkpoint: the user did not ask to train from scratch. Raise CheckpointError if the volume
    cannot be read.
    """
    own = _newest_readable(run_dir, warn, skip) if run_dir else None
    if own or not resume_dir:
        return own
    found = _newest_readable(newest_run(resume_dir), warn, skip)
    if not found:
        raise RecipeError(
            f"there is no readable checkpoint to resume from in {resume_dir}",
            fix="name a run on this volume that has committed a checkpoint, or omit --resume",
        )
    return found


def newest_run(folder: Location) -> Location:
    """`folder` itself if it holds checkpoints, else its subfolder with the newest committed one.

    A job that is recreated under the same name gets a new subfolder beside the old one. The newest by time is
    used, since steps of different runs cannot be compared.
    """
    if committed(folder):
        return folder
    runs = [child for child in _children(folder) if committed(child)]
    return max(runs, key=lambda run: storage.committed_at(committed(run)[0]), default=folder)


def committed(run_dir: Location) -> list[Location]:
    """A run's committed checkpoints, the newest first; empty if there is no such folder."""
    return [run_dir / name for name in paths.newest_first(child.name for child in _children(run_dir))]


def read(folder: Location, *, is_mapped: bool = False) -> dict[str, Any]:
    """The state of a committed checkpoint, on the CPU, once its checksums were checked. Executes no code.

    is_mapped  do not read tensors of a local file before they are used
    CheckpointError or MemoryError if it may be intact; any other exception means that it is damaged.
    """
    try:
        with _state_file(folder) as file, zipfile.ZipFile(file) as archive:
            damaged = archive.testzip()  # torch.load itself does not check checksums
        if damaged:
            raise zipfile.BadZipFile(f"checksum of {damaged} is wrong")
        return load(folder, is_mapped=is_mapped)
    except (OSError, zipfile.BadZipFile) as error:
        # zipfile hides the error of a read behind its own.
        cause = error if isinstance(error, OSError) else error.__context__
        if not isinstance(cause, OSError) or cause.errno in _MISSING:
            raise
        raise _refused(folder / paths.STATE_FILE, cause) from error


def load(folder: Location, *, is_mapped: bool = False) -> dict[str, Any]:
    """The state of a committed checkpoint without a check of its checksums."""
    with _state_file(folder) as file:
        is_mapped = is_mapped and isinstance(file, Path)
        state = torch.load(file, map_location="cpu", weights_only=True, mmap=is_mapped)
    if not isinstance(state, dict) or "step" not in state:
        raise ValueError("it is not a dtj checkpoint")
    return state


def fingerprint(folder: Location) -> list[list[str | int]] | None:
    """Names, sizes and checksums of what a state file holds; None if this rank cannot read it."""
    try:
        with _state_file(folder) as file, zipfile.ZipFile(file) as archive:
            return [[each.filename, each.file_size, each.CRC] for each in archive.infolist()]
    except (OSError, ValueError, zipfile.BadZipFile):
        return None


def mapped(folder: Location) -> tuple[dict[str, Any], Location | None]:
    """The state of a committed checkpoint, and the folder of its shards; None if it has none.

    Tensors are mapped from the file, and placeholders if they are in shards.
    RecipeError if `folder` is not a readable checkpoint.
    """
    try:
        return read(folder, is_mapped=True), _shards(folder)
    except (OSError, zipfile.BadZipFile, ValueError, RuntimeError, pickle.UnpicklingError) as error:
        raise RecipeError(
            f"{folder} is not a checkpoint: {error}", fix="name a step-N folder of a run"
        ) from error


def whole(folder: Location) -> dict[str, Any]:
    """The whole state of a committed checkpoint, on the CPU, however many ranks wrote it.

    RecipeError if `folder` is not a readable checkpoint, CheckpointError if its shards cannot be read.
    """
    state, shards = mapped(folder)
    if shards is None:
        return state
    from dtj.checkpoint import sharded  # noqa: PLC0415 - half a second of imports

    plan = sharded.LoadPlan({}, keeps=lambda _: True)
    return state | {"parts": sharded.load_tensors(state["parts"], shards, plan)}


def _newest_readable(
    run_dir: Location, warn: Callable[[str], None], skip: Collection[Location]
) -> Found | None:
    for folder in committed(run_dir):
        if folder in skip:
            continue
        try:
            state = read(folder)
        except (CheckpointError, MemoryError):  # it may be intact: if skipped, a later save would delete it
            raise
        except Exception as error:  # noqa: BLE001 - a damaged file can raise any exception
            cause = next(iter(str(error).strip().splitlines()), type(error).__name__)
            warn(f"checkpoint {folder} is unreadable and was skipped: {cause}")
            continue
        return Found(folder=folder, state=state, shards=_shards(folder))
    return None


def _shards(folder: Location) -> Location | None:
    try:
        shards = storage.content(folder) / paths.SHARDS
        return shards if shards.exists() else None
    except OSError as error:
        raise _refused(folder, error) from error


@contextlib.contextmanager
def _state_file(folder: Location) -> Iterator[Any]:
    """The state file as zipfile and torch.load take it: its path, or a file of the object store."""
    file = storage.content(folder) / paths.STATE_FILE
    if isinstance(file, Path):
        yield file
    else:
        with file.reading() as opened:
            yield opened


def _children(folder: Location) -> list[Location]:
    try:
        return list(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise _refused(folder, error) from error


def _refused(path: Location, error: OSError) -> CheckpointError:
    check = "the volume is mounted and that this user may read it"
    if not isinstance(path, Path):
        check = "the store answers and that the credentials allow to read it"
    return CheckpointError(
        f"{path} cannot be read: {error.strerror}",
        fix=f"check that {check}; if it stays unreadable, remove it to resume from the checkpoint before it",
    )
