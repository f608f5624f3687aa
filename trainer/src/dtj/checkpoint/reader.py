"""Find checkpoints, of this run or else of the run to resume from, and read one."""

import contextlib
import errno
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from dtj.checkpoint import paths, storage
from dtj.checkpoint.objects import Location
from dtj.errors import CheckpointError, DamagedError, RecipeError

# Errors that mean a file is missing. All others may be temporary: of a network volume also EIO.
_MISSING = {errno.ENOENT, errno.ENOTDIR, errno.EISDIR}

torch.serialization.add_safe_globals([bytes])  # pickle writes an empty bytes object as a call of its type


@dataclass(frozen=True, kw_only=True)
class Found:
    """A checkpoint that was read and checked.

    state   the content of its state file, on the CPU
    shards  the folder of its shards, None if it has none
    """

    folder: Location
    state: dict[str, Any]
    shards: Location | None


def candidates(run_dir: Location | None, resume_dir: Location | None) -> Iterator[Location]:
    """The run's own checkpoints, the newest first, then those of `resume_dir`; some may be damaged.

    RecipeError at their end if `resume_dir` is set: the user did not ask to train from scratch.
    CheckpointError if the volume cannot be read.
    """
    if run_dir:
        yield from committed(run_dir)
    if resume_dir:
        run, tried = newest_run(resume_dir), set[Location]()
        # That run may still train, and remove old ones as it saves: so the names are read again each time.
        while left := [each for each in committed(run) if each not in tried]:
            tried.add(left[0])
            yield left[0]
        raise RecipeError(
            f"there is no readable checkpoint to resume from: {_why_none(resume_dir, committed(run))}",
            fix="name a run on this volume that has saved a checkpoint; to start from step 0 "
            "leave out --resume, or checkpoint.resumeFrom of the job",
        )


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
    DamagedError if it is damaged; another CheckpointError, or a MemoryError, if it may be intact.
    """
    try:
        with _state_file(folder) as file, zipfile.ZipFile(file) as archive:
            damaged = archive.testzip()  # torch.load itself does not check checksums
        if damaged:
            raise zipfile.BadZipFile(f"checksum of {damaged} is wrong")
        return load(folder, is_mapped=is_mapped)
    except MemoryError:
        raise
    except Exception as error:  # a damaged file can raise any exception
        # zipfile hides the error of a read behind its own.
        cause = error.__context__ if isinstance(error, zipfile.BadZipFile) else error
        if isinstance(cause, OSError) and cause.errno not in _MISSING:
            raise _refused(folder / paths.STATE_FILE, cause) from error
        raise DamagedError(next(iter(str(error).strip().splitlines()), type(error).__name__)) from error


def load(folder: Location, *, is_mapped: bool = False) -> dict[str, Any]:
    """The state of a committed checkpoint without a check of its checksums."""
    with _state_file(folder) as file:
        is_mapped = is_mapped and isinstance(file, Path)
        state = torch.load(file, map_location="cpu", weights_only=True, mmap=is_mapped)
    if not isinstance(state, dict) or "step" not in state:
        raise ValueError("it is not a dtj checkpoint")
    return state


def shards_of(folder: Location) -> Location | None:
    """The folder of its shards, None if it has none."""
    try:
        shards = storage.content(folder) / paths.SHARDS
        return shards if shards.exists() else None
    except OSError as error:
        raise _refused(folder, error) from error


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
        return read(folder, is_mapped=True), shards_of(folder)
    except DamagedError as error:
        raise RecipeError(
            f"{folder} is not a checkpoint: {error.what}", fix="name a step-N folder of a run"
        ) from error


@contextlib.contextmanager
def _state_file(folder: Location) -> Iterator[Any]:
    """The state file as zipfile and torch.load take it: its path, or a file of the object store."""
    file = storage.content(folder) / paths.STATE_FILE
    if isinstance(file, Path):
        yield file
    else:
        with file.reading() as opened:
            yield opened


def _why_none(resume_dir: Location, damaged: list[Location]) -> str:
    """Why no checkpoint could be read; `damaged` are all that are committed in the newest run."""
    if damaged:
        names = ", ".join(each.name for each in damaged)
        return f"all in {damaged[0].parent} are damaged ({names}); the log says how"
    runs = _children(resume_dir)
    if not runs:
        is_missing = isinstance(resume_dir, Path) and not resume_dir.is_dir()
        return f"there is no folder {resume_dir}" if is_missing else f"{resume_dir} is empty"
    names_of_all = [child.name for child in chain(runs, *map(_children, runs))]
    begun = [name for name in paths.unfinished(names_of_all) if name.startswith("step-")]
    incomplete = f"; {begun[0]} is incomplete" if begun else ""
    return f"no run has saved one in {resume_dir}{incomplete}"


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
