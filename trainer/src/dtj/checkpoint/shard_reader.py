"""Reads shards without executing what is in their files.

torch.distributed.checkpoint reads tensors with weights_only; but which there are, and where, it writes as a
pickle and reads as one, whoever has changed it meanwhile.
"""

import dataclasses
import enum
import pickle
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, Metadata, StorageMeta

_NAMES = {
    ("pathlib", "PosixPath"),
    ("pathlib._local", "PosixPath"),  # as Python 3.13 calls it
    ("torch", "Size"),
    ("torch.serialization", "_get_layout"),
}
_MODULES = {"torch", "torch.distributed.checkpoint.metadata", "torch.distributed.checkpoint.filesystem"}


class ShardReader(FileSystemReader):
    """torch's reader of a folder; UnpicklingError where its metadata holds more than data about tensors."""

    def read_metadata(self, *_: Any, **__: Any) -> Metadata:
        with (Path(self.path) / ".metadata").open("rb") as file:
            found: Metadata = _DataOnly(file).load()
        found.storage_meta = found.storage_meta or StorageMeta()
        found.storage_meta.load_id = self.load_id
        return found


class _DataOnly(pickle.Unpickler):
    """Makes data classes of torch.distributed.checkpoint, and what their fields hold."""

    def find_class(self, module: str, name: str) -> Any:
        is_known = (module, name) in _NAMES
        if is_known or (module in _MODULES and "." not in name):  # a dot reaches into what the module imports
            found = super().find_class(module, name)
            if is_known or _is_data(found):
                return found
        raise pickle.UnpicklingError(f"its metadata names {module}.{name}, which is no data")


def _is_data(found: Any) -> bool:
    if isinstance(found, type) and found is not BytesStorageMetadata:  # bytes would be unpickled, too
        return dataclasses.is_dataclass(found) or issubclass(found, enum.Enum)
    return isinstance(found, torch.dtype)
