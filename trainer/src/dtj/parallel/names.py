"""Names in the state of a module: those of any other strategy, though DDP adds "module." to its own.

    actor.module.0.weight   in an agent whose actor is wrapped in DDP
    actor.0.weight          in a checkpoint

Only checkpoints rename: to torch and to the program, a wrapped model has the names that torch's DDP gives it.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

_INNER = "module."


def named_parameters(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """As the method of a module, with the names of `state_of`."""
    wrapped = _wrapped(model)
    for name, parameter in model.named_parameters():
        yield _plain(name, wrapped), parameter


def named_buffers(model: nn.Module) -> Iterator[tuple[str, nn.Module, torch.Tensor]]:
    """Each buffer: its name in `state_of`, if that has it, its module and itself; once for each name."""
    wrapped = _wrapped(model)
    for path, module in model.named_modules(remove_duplicate=False):
        for name, buffer in module.named_buffers(path, recurse=False, remove_duplicate=False):
            yield _plain(name, wrapped), module, buffer


def state_of(part: Any) -> Any:
    """The state of a module, or of any other object with state_dict."""
    state, wrapped = part.state_dict(), _wrapped(part)
    return _renamed(state, lambda name: _plain(name, wrapped)) if wrapped else state


def load_state(part: Any, state: Any) -> None:
    """Load what `state_of` returned."""
    if wrapped := _wrapped(part):
        own = part.state_dict()
        known = {_plain(name, wrapped): name for name in (*own, *_versions(own))}
        state = _renamed(state, lambda name: known.get(name) or _full(name, wrapped))
    part.load_state_dict(state)


def _wrapped(part: Any) -> list[str]:
    """Prefixes of the names in modules that are wrapped in DDP, outermost first; "" for the part itself."""
    if not isinstance(part, nn.Module):
        return []
    modules = part.named_modules(remove_duplicate=False)
    return [path and f"{path}." for path, each in modules if isinstance(each, DistributedDataParallel)]


def _plain(name: str, wrapped: list[str]) -> str:
    for prefix in reversed(wrapped):
        if name.startswith(prefix + _INNER):
            name = prefix + name.removeprefix(prefix + _INNER)
    return name


def _full(name: str, wrapped: list[str]) -> str:
    for prefix in wrapped:
        if name.startswith(prefix):
            name = prefix + _INNER + name.removeprefix(prefix)
    return name


def _renamed(state: Any, rename: Callable[[str], str]) -> Any:
    renamed: Any = OrderedDict((rename(name), value) for name, value in state.items())
    renamed._metadata = {rename(name)[:-1]: version for name, version in _versions(state).items()}
    return renamed


def _versions(state: Any) -> dict[str, Any]:
    """Versions of the modules, which torch keeps beside their tensors, by the prefix of their names."""
    return {path and f"{path}.": version for path, version in getattr(state, "_metadata", {}).items()}
