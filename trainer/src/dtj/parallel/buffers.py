"""A forward that changes copies of a model's buffers (batch norm, spectral norm) instead of the buffers."""

import contextlib
from collections.abc import Iterable, Iterator

import torch
from torch import nn

# Of each module, by their names.
Buffers = list[dict[str, torch.Tensor]]


def owners(modules: Iterable[nn.Module]) -> list[nn.Module]:
    """Those that have buffers which their forward may change, once each."""
    found = dict.fromkeys(each for module in modules for each in module.modules())
    return [module for module in found if any(_may_change(b) for b in module._buffers.values())]


def copied(modules: list[nn.Module]) -> Buffers:
    """Copies of their buffers that may change."""
    return [
        {name: b.clone() for name, b in module._buffers.items() if b is not None and _may_change(b)}
        for module in modules
    ]


@contextlib.contextmanager
def replaced(modules: list[nn.Module], buffers: Buffers) -> Iterator[None]:
    """Context in which the modules have other buffers."""
    own = [dict(module._buffers) for module in modules]
    for module, others in zip(modules, buffers, strict=True):
        module._buffers.update(others)
    try:
        yield
    finally:
        for module, found in zip(modules, own, strict=True):
            module._buffers.update(found)


def _may_change(buffer: torch.Tensor | None) -> bool:
    """A mask never changes, and may be large."""
    return buffer is not None and buffer.dtype is not torch.bool
