"""A short fingerprint of samples, to see whether two ranks read the same ones."""

from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

import numpy as np
import torch


def digest(value: Any) -> int:
    """63 bits that depend on the numbers, strings and dense tensors in a structure; all else is equal."""
    found = blake2b(digest_size=8)
    _add(value, found)
    return int.from_bytes(found.digest(), "little") >> 1


def _add(value: Any, found: Any) -> None:
    if isinstance(value, torch.Tensor) and value.layout == torch.strided:
        value = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    if isinstance(value, np.ndarray) and value.dtype != object:
        found.update(value.tobytes())
    elif isinstance(value, str | int | float | bytes | np.generic):
        found.update(repr(value).encode())
    elif isinstance(value, Mapping):
        for key in value:
            _add(value[key], found)
    elif isinstance(value, list | tuple):
        for item in value:
            _add(item, found)
