"""State of a rank <-> bytes: an index that executes no code, then the bytes of the tensors.

The index is what torch.save makes of the state with placeholders for tensors, and of the record of each
tensor. Of a tensor that is sharded over ranks, only this rank's part is kept; the tensor that the program has
in its place when the copy is loaded (`Template`) shows how it is sharded.
"""

import io
import math
from collections.abc import Callable
from typing import Any

import torch

from dtj.checkpoint import placeholders
from dtj.checkpoint.save import check_loadable
from dtj.errors import CheckpointError
from dtj.parallel.strategy import as_shard, local_part

# path of a tensor in the state -> the tensor that the program has there now
Template = Callable[[str], "torch.Tensor | None"]
_ALIGNMENT = 64
_LENGTH_BYTES = 8


class Packed:
    """A state ready to be copied; refers to the tensors until then.

    length  of the copy in bytes
    """

    def __init__(self, state: Any) -> None:
        """CheckpointError or RecipeError if the state holds something that this format cannot hold."""
        tree, tensors = placeholders.extract(state)
        check_loadable(tree, "state")
        self._tensors: dict[str, torch.Tensor] = {}  # this rank's parts, by path
        self._records: dict[str, dict[str, Any]] = {}
        self._places: dict[Any, int] = {}  # by memory and layout: tied weights are copied once
        self._end = 0
        for path, tensor in placeholders.by_path(tensors).items():
            if not tensor.is_meta:
                self._add(path, tensor.detach())
        index = io.BytesIO()
        torch.save([tree, self._records], index)
        self._index = index.getbuffer()
        self._start = _aligned(_LENGTH_BYTES + len(self._index))
        self.length = self._start + self._end

    def fill(self, target: memoryview) -> None:
        """Write the copy; the state must not change meanwhile."""
        ends = _LENGTH_BYTES + len(self._index)
        target[:_LENGTH_BYTES] = len(self._index).to_bytes(_LENGTH_BYTES, "little")
        target[_LENGTH_BYTES:ends] = self._index
        for path, tensor in self._tensors.items():
            if tensor.numel():
                record = self._records[path]
                _tensor_at(target, self._start + record["place"], record).copy_(tensor)

    def _add(self, path: str, tensor: Any) -> None:
        sharding = _sharding(tensor)
        if sharding is not None:
            tensor = tensor.to_local()
        if tensor.layout != torch.strided or tensor.is_quantized:
            raise CheckpointError("the state holds a sparse or quantized tensor")
        memory = placeholders.memory_of(tensor) or path
        self._records[path] = {
            "dtype": tensor.dtype,
            "shape": tensor.shape,
            "stride": torch.empty_like(tensor, device="meta").stride(),  # dense
            "place": self._places.setdefault(memory, self._end),
            "sharding": sharding,
        }
        if self._places[memory] == self._end:
            self._tensors[path] = tensor
            self._end = _aligned(self._end + tensor.numel() * tensor.element_size())


def unpack(data: memoryview, template: Template) -> Any:
    """The state, with tensors of its own in host memory; sharded ones are on the device of their template.

    CheckpointError if it does not fit the templates.
    """
    length = int.from_bytes(data[:_LENGTH_BYTES], "little")
    index = io.BytesIO(data[_LENGTH_BYTES : _LENGTH_BYTES + length])
    tree, records = torch.load(index, weights_only=True)
    start = _aligned(_LENGTH_BYTES + length)

    def tensor_at(path: str) -> Any:
        if path not in records:  # another rank's
            return _fitting(template(path), None, path)
        record = records[path]
        own = _tensor_at(data, start + record["place"], record).clone(memory_format=torch.preserve_format)
        if record["sharding"] is None:
            return own
        like = _fitting(template(path), record["sharding"], path)
        if local_part(like).shape != own.shape:
            raise CheckpointError(f"{path} is sharded in another way")
        return as_shard(own, like)

    return placeholders.fill(tree, tensor_at)


def _tensor_at(data: memoryview, place: int, record: dict[str, Any]) -> torch.Tensor:
    """The tensor of a record, which shares memory with `data`."""
    dtype, shape, stride = record["dtype"], record["shape"], record["stride"]
    count = math.prod(shape)
    if count == 0:
        return torch.empty_strided(shape, stride, dtype=dtype)
    return torch.frombuffer(data, dtype=dtype, count=count, offset=place).as_strided(shape, stride)


def _fitting(template: Any, sharding: Any, path: str) -> Any:
    if template is None or (not template.is_meta if sharding is None else _sharding(template) != sharding):
        raise CheckpointError(f"{path} is sharded in another way")
    return template


def _sharding(tensor: Any) -> Any:
    """What must be the same when the tensor is restored."""
    if not hasattr(tensor, "placements"):
        return None
    return [list(tensor.shape), [str(each) for each in tensor.placements], list(tensor.device_mesh.shape)]


def _aligned(count: int) -> int:
    return -(-count // _ALIGNMENT) * _ALIGNMENT
