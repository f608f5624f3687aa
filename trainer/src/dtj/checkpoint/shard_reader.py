"""Reads shards without executing code from their files, and checks their checksums.

torch.distributed.checkpoint loads tensors with weights_only. But it unpickles the metadata, which says where
each tensor is, without any restriction: a file that was tampered with could execute code.
"""

import dataclasses
import enum
import io
import pickle
import zipfile
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, Metadata, StorageMeta

_NAMES = {
    ("pathlib", "PosixPath"),
    ("pathlib._local", "PosixPath"),  # its module in Python 3.13
    ("torch", "Size"),
    ("torch.serialization", "_get_layout"),
}
_MODULES = {"torch", "torch.distributed.checkpoint.metadata", "torch.distributed.checkpoint.filesystem"}


class ShardReader(FileSystemReader):
    """torch's FileSystemReader; UnpicklingError if the metadata refers to anything but plain data types.

    BadZipFile if a tensor's checksum is wrong, which torch does not check.
    """

    def read_metadata(self, *_: Any, **__: Any) -> Metadata:
        with (Path(self.path) / ".metadata").open("rb") as file:
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
