"""How a checkpoint is committed and removed: by a rename in a folder, by a marker in an object store.

A folder         step-140.<writer>.tmp/ gets its final name step-140/ once its content is on the disk
An object store  step-140.<id>.<writer>.tmp/... are the objects; the object step-140, put last, names them

Either way one operation commits: before it there is no checkpoint of this step, after it a complete one.
"""

import contextlib
import errno
import json
import os
import shutil
import stat
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dtj.checkpoint import paths
from dtj.checkpoint.objects import Location, ObjectPath
from dtj.errors import CheckpointError, NoSpaceError, revealed


def content(checkpoint: Location) -> Location:
    """Where the files of a committed checkpoint are; ValueError if its marker is damaged."""
    return checkpoint if isinstance(checkpoint, Path) else checkpoint.parent / _marker(checkpoint)["content"]


def committed_at(checkpoint: Location) -> float:
    """When it was committed, as a Unix time."""
    if isinstance(checkpoint, Path):
        return checkpoint.stat().st_mtime
    with contextlib.suppress(ValueError):
        return float(_marker(checkpoint)["at"])
    return 0.0


def not_written(run_dir: Location, step: int, error: BaseException) -> CheckpointError:
    """The error for a checkpoint of `step` that could not be written."""
    cause = revealed(error)
    reason = cause.strerror if isinstance(cause, OSError) else None
    what = f"checkpoint {run_dir / paths.name_of(step)} could not be written: {reason or error}"
    if not isinstance(run_dir, Path):
        fix = "check the bucket, and that every replica has the store's address and credentials to write"
        return CheckpointError(what, fix=fix)
    if isinstance(cause, OSError) and cause.errno in {errno.ENOSPC, errno.EDQUOT}:
        fix = "free space on this volume, or enlarge it: one checkpoint more than --keep must fit"
        return NoSpaceError(what, fix=fix)
    fix = "check that the volume is mounted on every node, has space, and that this user may write to it"
    return CheckpointError(what, fix=fix)


class Folder:
    """The folder of a run, on a file system with an atomic rename. Methods raise OSError if it fails."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir

    def create(self, *, shared: int) -> None:
        """Create the folder if there is none.

        shared  so many folders above it are for jobs of other users, too, if the volume is
        """
        for folder in reversed(self._run_dir.parents[:shared]):
            _create_like_parent(folder)
        self._run_dir.mkdir(parents=True, exist_ok=True)

    def names(self) -> list[str]:
        """What it holds: committed checkpoints, unfinished ones, other files."""
        return [child.name for child in self._run_dir.iterdir()]

    def replace(self, name: str, data: bytes, *, writer: str) -> None:
        """Write a small file such that readers see the old content or the new."""
        pending = self._run_dir / f"{name}.{writer}"
        try:
            with self.file(pending) as file:
                file.write(data)
            pending.rename(self._run_dir / name)
        except OSError:
            with contextlib.suppress(OSError):
                pending.unlink()
            raise
        _fsync(self._run_dir)

    def begin(self, step: int, writer: str) -> Path:
        """An empty place for the content of a checkpoint; no run reads it before it is committed."""
        pending = self.pending(step, writer)
        shutil.rmtree(pending, ignore_errors=True)
        pending.mkdir()
        return pending

    def pending(self, step: int, writer: str) -> Path:
        """The place that `begin` returned."""
        return self._run_dir / paths.pending_name_of(step, writer)

    @contextlib.contextmanager
    def file(self, path: Location) -> Iterator[Any]:
        """A file to write, which is stored safely at the end of the block."""
        assert isinstance(path, Path)
        with path.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())

    def commit(self, step: int, writer: str) -> Path:
        """Make what was written the checkpoint of `step`, instead of an earlier one; return its location."""
        pending, final = self.pending(step, writer), self._run_dir / paths.name_of(step)
        for shards in pending.glob(paths.SHARDS):
            _fsync(shards)
        _fsync(pending)
        doomed = self._run_dir / paths.doomed_name_of(step, writer)
        while not _has_moved(pending, final):
            # An unreadable one, whose step was trained again, or that of a rank that saves it at this moment.
            shutil.rmtree(doomed, ignore_errors=True)
            with contextlib.suppress(FileNotFoundError):
                final.rename(doomed)
        _fsync(self._run_dir)
        shutil.rmtree(doomed, ignore_errors=True)
        return final

    def remove(self, name: str, *, writer: str) -> None:
        """Delete a part, or a checkpoint such that a crash never leaves a part of it committed."""
        folder = self._run_dir / name
        if (step := paths.step_of(name)) is not None:
            doomed = self._run_dir / paths.doomed_name_of(step, writer)
            shutil.rmtree(doomed, ignore_errors=True)
            folder = folder.rename(doomed)
        if folder.is_file():  # of a `replace` that did not end
            folder.unlink()
        else:
            shutil.rmtree(folder, ignore_errors=True)


class ObjectStore:
    """The same below a URL. A store has no rename: the marker of a checkpoint is what commits it.

    Two saves never write objects of the same name, except markers and owner.json: each save has an id.
    """

    def __init__(self, run_dir: ObjectPath) -> None:
        self._run_dir = run_dir
        self._id = ""  # of the save in progress

    def create(self, *, shared: int) -> None:
        del shared  # objects need no folder

    def names(self) -> list[str]:
        """Markers, and the content of checkpoints that no marker names."""
        try:
            names = [child.name for child in self._run_dir.iterdir()]
        except FileNotFoundError:
            return []
        markers = [self._run_dir / name for name in paths.newest_first(names)]
        committed = {_content_name(marker) for marker in markers} if len(names) > len(markers) else set()
        return [name for name in names if name not in committed]

    def replace(self, name: str, data: bytes, *, writer: str) -> None:
        del writer  # one request replaces an object
        (self._run_dir / name).write_bytes(data)

    def begin(self, step: int, writer: str) -> ObjectPath:
        self._id = uuid.uuid4().hex[:8]
        return self.pending(step, writer)

    def pending(self, step: int, writer: str) -> ObjectPath:
        return self._run_dir / paths.pending_name_of(step, f"{self._id}.{writer}")

    def file(self, path: Location) -> contextlib.AbstractContextManager[Any]:
        assert isinstance(path, ObjectPath)
        return path.writing()

    def commit(self, step: int, writer: str) -> ObjectPath:
        marker = self._run_dir / paths.name_of(step)
        found = {"content": self.pending(step, writer).name, "at": time.time()}
        marker.write_bytes(json.dumps(found).encode())
        return marker

    def remove(self, name: str, *, writer: str) -> None:
        del writer
        if paths.step_of(name) is not None:
            marker = self._run_dir / name
            committed = _content_name(marker)
            marker.remove()
            if committed is None:
                return
            name = committed
        with contextlib.suppress(OSError):  # the next save tries again
            (self._run_dir / name).remove()


def at(run_dir: Location) -> Folder | ObjectStore:
    """The storage that the folder of a run is in."""
    return Folder(run_dir) if isinstance(run_dir, Path) else ObjectStore(run_dir)


def _content_name(marker: ObjectPath) -> str | None:
    """Name of what the marker commits; None if it is missing or damaged."""
    try:
        return str(_marker(marker)["content"])
    except (FileNotFoundError, ValueError):
        return None


def _marker(marker: ObjectPath) -> dict[str, Any]:
    found = json.loads(marker.read_bytes())
    if not isinstance(found, dict) or "/" in str(found.get("content", "/")):
        raise ValueError(f"{marker} does not say where the checkpoint is")
    return found


def _create_like_parent(folder: Path) -> None:
    """Create a folder in which all users may create folders who may do so in the one above it."""
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        return
    with contextlib.suppress(OSError):  # a file system without permissions
        folder.chmod(stat.S_IMODE(folder.parent.stat().st_mode))


def _has_moved(folder: Path, target: Path) -> bool:
    """Move a folder; False if there is another one."""
    try:
        folder.rename(target)
    except OSError as error:
        if error.errno in {errno.ENOTEMPTY, errno.EEXIST}:
            return False
        raise
    return True


def _fsync(folder: Path) -> None:
    """Bring the names in a folder to the disk."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
