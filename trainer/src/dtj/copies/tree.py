"""State of a rank <-> bytes: a JSON index, then the bytes of the tensors. Nothing in it can be executed.

Containers are JSON arrays that begin with their type, so that a tuple stays a tuple, and a key that is a
number stays one. Of a tensor that is sharded over ranks, only this rank's part is kept; the tensor that the
program has in its place when the copy is loaded (`Template`) shows how it is sharded.
"""

import base64
import json
import math
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Any

import torch

# path of a tensor in the state -> the tensor that the program has there now
Template = Callable[[str], "torch.Tensor | None"]
_ALIGNMENT = 64
_LENGTH_BYTES = 8
_LISTS: dict[str, Any] = {"list": list, "tuple": tuple, "set": set, "size": torch.Size}
_DICTS: dict[str, Any] = {"dict": dict, "ordered": OrderedDict, "counter": Counter}

_LEAVES: dict[str, Callable[..., Any]] = {
    "complex": complex,
    "bytes": base64.b64decode,
    "dtype": lambda name: getattr(torch, name),
    "device": torch.device,
}


class NotCopyableError(Exception):
    """The state holds something that this format cannot hold, or does not fit the program; says what."""


class Packed:
    """A state ready to be copied; refers to the tensors until then.

    length  of the copy in bytes
    """

    def __init__(self, state: Any) -> None:
        self._tensors: list[tuple[int, torch.Tensor]] = []  # place and this rank's part
        self._records: list[dict[str, Any]] = []
        self._end = 0
        tree = self._encode(state)
        self._index = json.dumps([tree, self._records]).encode()
        self._start = _aligned(_LENGTH_BYTES + len(self._index))
        self.length = self._start + self._end

    def fill(self, target: memoryview) -> None:
        """Write the copy; the state must not change meanwhile."""
        ends = _LENGTH_BYTES + len(self._index)
        target[:_LENGTH_BYTES] = len(self._index).to_bytes(_LENGTH_BYTES, "little")
        target[_LENGTH_BYTES:ends] = self._index
        for (place, tensor), record in zip(self._tensors, self._records, strict=True):
            if tensor.numel():
                _tensor_at(target, self._start + place, record).copy_(tensor)

    def _encode(self, value: Any) -> Any:
        if value is None or type(value) in {bool, int, float, str}:
            return value
        if isinstance(value, torch.Tensor):
            return ["meta"] if value.is_meta else self._encode_tensor(value)
        for name, kind in _LISTS.items():
            if type(value) is kind:
                return [name, *map(self._encode, value)]
        for name, kind in _DICTS.items():
            if type(value) is kind:
                return [name, *([self._encode(key), self._encode(item)] for key, item in value.items())]
        match value:
            case complex():
                return ["complex", value.real, value.imag]
            case bytes():
                return ["bytes", base64.b64encode(value).decode()]
            case torch.dtype():
                return ["dtype", _name_of(value)]
            case torch.device():
                return ["device", str(value)]
        raise NotCopyableError(f"the state holds a {type(value).__qualname__}")

    def _encode_tensor(self, value: Any) -> list[Any]:
        tensor, sharding = value.detach(), None
        if hasattr(tensor, "placements"):
            sharding = _sharding(tensor)
            tensor = tensor.to_local()
        if tensor.layout != torch.strided or tensor.is_quantized:
            raise NotCopyableError("the state holds a sparse or quantized tensor")
        self._records.append(
            {
                "dtype": _name_of(tensor.dtype),
                "shape": list(tensor.shape),
                "stride": list(torch.empty_like(tensor, device="meta").stride()),  # dense
                "place": self._end,
                "sharding": sharding,
            }
        )
        self._tensors.append((self._end, tensor))
        self._end = _aligned(self._end + tensor.numel() * tensor.element_size())
        return ["tensor", len(self._records) - 1]


def unpack(data: memoryview, template: Template) -> Any:
    """The state, with tensors of its own in host memory; sharded ones are on the device of their template.

    NotCopyableError if it does not fit the templates.
    """
    length = int.from_bytes(data[:_LENGTH_BYTES], "little")
    tree, records = json.loads(bytes(data[_LENGTH_BYTES : _LENGTH_BYTES + length]))
    start = _aligned(_LENGTH_BYTES + length)

    def decode(node: Any, path: str) -> Any:
        match node:
            case ["meta"]:
                return _fitting(template(path), None, path)
            case ["tensor", number]:
                record = records[number]
                found = _tensor_at(data, start + record["place"], record).clone(
                    memory_format=torch.preserve_format
                )
                if record["sharding"] is None:
                    return found
                return _shard_like(_fitting(template(path), record["sharding"], path), found, path)
            case [name, *items] if name in _LISTS:
                return _LISTS[name](tuple(decode(item, f"{path}/{i}") for i, item in enumerate(items)))
            case [name, *items] if name in _DICTS:
                keys = [decode(key, path) for key, _ in items]
                pairs = zip(keys, items, strict=True)
                return _DICTS[name](
                    {key: decode(item, f"{path}/{key}" if path else str(key)) for key, (_, item) in pairs}
                )
            case [name, *values] if name in _LEAVES:
                return _LEAVES[name](*values)
        return node

    return decode(tree, "")


def _tensor_at(data: memoryview, place: int, record: dict[str, Any]) -> torch.Tensor:
    """The tensor of a record, which shares memory with `data`."""
    dtype, shape, stride = getattr(torch, record["dtype"]), record["shape"], record["stride"]
    count = math.prod(shape)
    if count == 0:
        return torch.empty_strided(shape, stride, dtype=dtype)
    return torch.frombuffer(data, dtype=dtype, count=count, offset=place).as_strided(shape, stride)


def _fitting(template: Any, sharding: Any, path: str) -> Any:
    if template is None or (not template.is_meta if sharding is None else _sharding(template) != sharding):
        raise NotCopyableError(f"{path} is sharded in another way")
    return template


def _shard_like(template: Any, local: torch.Tensor, path: str) -> torch.Tensor:
    from torch.distributed.tensor import DTensor  # noqa: PLC0415 - slow to import, and loaded if it is needed

    there = template.to_local()
    if there.shape != local.shape:
        raise NotCopyableError(f"{path} is sharded in another way")
    return DTensor.from_local(
        local.to(there.device),
        template.device_mesh,
        template.placements,
        run_check=False,
        shape=template.shape,
        stride=template.stride(),
    )


def _sharding(tensor: Any) -> Any:
    """What must be the same when the tensor is restored; JSON."""
    if not hasattr(tensor, "placements"):
        return None
    return [list(tensor.shape), [str(each) for each in tensor.placements], list(tensor.device_mesh.shape)]


def _name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _aligned(count: int) -> int:
    return -(-count // _ALIGNMENT) * _ALIGNMENT
