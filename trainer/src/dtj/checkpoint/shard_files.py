"""torch.distributed.checkpoint's files: reading executes no code, and checks their checksums.

torch.distributed.checkpoint loads tensors with weights_only. But it unpickles the metadata, which says where
each tensor is, without any restriction: a file that was tampered with could execute code.
"""

import dataclasses
import enum
import io
import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.filesystem import FileSystemBase, FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, Metadata, StorageMeta

from dtj.checkpoint.objects import Location, ObjectPath
from dtj.errors import revealed

_NAMES = {
    ("pathlib", "PosixPath"),
    ("pathlib._local", "PosixPath"),  # its module in Python 3.13
    ("torch", "Size"),
    ("torch.serialization", "_get_layout"),
}
_MODULES = {"torch", "torch.distributed.checkpoint.metadata", "torch.distributed.checkpoint.filesystem"}


def shard_writer(shards: Location) -> FileSystemWriter:
    """Writes this rank's tensors to one file, which is stored safely once the save returns."""
    writer = _ShardWriter(str(shards), sync_files=isinstance(shards, Path))
    if isinstance(shards, ObjectPath):
        writer.fs, writer.path = _Objects(), str(shards)  # type: ignore[assignment]  # a FileSystemBase
    return writer


class _ShardWriter(FileSystemWriter):
    """torch's FileSystemWriter; if the disk fails it raises that error, and not one that hides it."""

    def write_data(self, *args: Any, **how: Any) -> Any:
        try:
            return super().write_data(*args, **how)
        except RuntimeError as error:
            raise revealed(error) from None


class _Objects(FileSystemBase):
    """The objects of a store as the file system of torch.distributed.checkpoint, which has paths as text."""

    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Any:
        found = ObjectPath(str(path))
        return found.reading() if mode == "rb" else found.writing()

    def concat_path(self, path: str | os.PathLike[str], suffix: str) -> str:
        return f"{path}/{suffix}"

    def rename(self, path: str | os.PathLike[str], new_path: str | os.PathLike[str]) -> None:
        ObjectPath(str(path)).rename(ObjectPath(str(new_path)))

    def init_path(self, path: str | os.PathLike[str]) -> str:
        return str(path)

    def mkdir(self, path: str | os.PathLike[str]) -> None:
        """Nothing: objects need no folder."""

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return "://" in str(checkpoint_id)

    def exists(self, path: str | os.PathLike[str]) -> bool:
        return ObjectPath(str(path)).exists()

    def rm_file(self, path: str | os.PathLike[str]) -> None:
        ObjectPath(str(path)).remove()


class ShardReader(FileSystemReader):
    """torch's FileSystemReader; UnpicklingError if the metadata refers to anything but plain data types.

    BadZipFile if a tensor's checksum is wrong, which torch does not check.
    """

    def __init__(self, shards: Location) -> None:
        super().__init__(str(shards))
        if isinstance(shards, ObjectPath):
            self.fs, self.path = _Objects(), str(shards)  # type: ignore[assignment]  # a FileSystemBase

    def read_metadata(self, *_: Any, **__: Any) -> Metadata:
        with self.fs.create_stream(self._get_metadata_path(), "rb") as file:
            found: Metadata = _DataOnly(file).load()
        found.storage_meta = found.storage_meta or StorageMeta()
        found.storage_meta.load_id = self.load_id
        return found

    def _slice_file(self, file: Any, sinfo: Any) -> Any:
        data = super()._slice_file(file, sinfo).read(-1)  # a tensor as torch.save wrote it
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            if damaged := archive.testzip():
                raise zipfile.BadZipFile(f"checksum of {damaged} in {sinfo.relative_path} is wrong")
        return io.BytesIO(data)


class _DataOnly(pickle.Unpickler):
    """Only creates the data classes of torch.distributed.checkpoint and the types of their fields."""

    def find_class(self, module: str, name: str) -> Any:
        is_known = (module, name) in _NAMES
        if is_known or (module in _MODULES and "." not in name):  # "a.b" would reach what the module imports
            found = super().find_class(module, name)
            if is_known or _is_data(found):
                return found
        raise pickle.UnpicklingError(
            f"its metadata refers to {module}.{name}; only plain data types are loaded"
        )


def _is_data(found: Any) -> bool:
    if isinstance(found, type) and found is not BytesStorageMetadata:  # such entries would be unpickled, too
        return dataclasses.is_dataclass(found) or issubclass(found, enum.Enum)
    return isinstance(found, torch.dtype)
