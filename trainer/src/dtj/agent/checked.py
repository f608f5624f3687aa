"""Values from a connection -> values of the expected type, or ValueError. Pure.

Anyone who reaches the port of replica 0 can send it any JSON.
"""

import dataclasses
import math
import types
from collections.abc import Mapping
from datetime import datetime
from typing import Any, get_args, get_origin, get_type_hints

_LARGEST = 2**53  # integers that JSON carries without loss everywhere


def checked(kind: Any, value: Any) -> Any:
    """The value as a plain type, `X | None`, `dict[int, X]`, a tuple, a NamedTuple or a dataclass."""
    origin = get_origin(kind)
    if origin is types.UnionType:
        options = get_args(kind)
        if value is None and type(None) in options:
            return None
        return checked(next(option for option in options if option is not type(None)), value)
    if origin in {dict, Mapping}:
        key_kind, of = get_args(kind)
        return {_key(key_kind, key): checked(of, each) for key, each in _of(Mapping, value).items()}
    if origin is tuple:
        return tuple(checked(of, each) for of, each in zip(get_args(kind), _of(list, value), strict=True))
    if dataclasses.is_dataclass(kind):
        return _fields(kind, _of(Mapping, value))
    if isinstance(kind, type) and issubclass(kind, tuple):
        names = get_type_hints(kind)
        if len(_of(list, value)) > len(names):
            raise ValueError(f"too many values for {kind.__name__}")
        return _fields(kind, dict(zip(names, value, strict=False)))
    return _plain(kind, value)


def _plain(kind: Any, value: Any) -> Any:
    if kind is datetime:
        return datetime.fromisoformat(_of(str, value))
    if kind is float and type(value) is int:
        value = float(value)
    if type(value) is not kind:
        raise ValueError(f"expected {kind.__name__}, got {type(value).__name__}")
    if (kind is int and abs(value) > _LARGEST) or (kind is float and not math.isfinite(value)):
        raise ValueError("the number is too large")
    return value


def _key(kind: Any, key: str) -> Any:
    return checked(kind, int(key)) if kind is int else checked(kind, key)


def _of(kind: Any, value: Any) -> Any:
    if not isinstance(value, kind):
        found = type(value).__name__
        raise ValueError(f"expected {kind.__name__}, got {found}")  # noqa: TRY004 - callers catch one class
    return value


def _fields(kind: Any, given: Mapping[str, Any]) -> Any:
    hints = get_type_hints(kind)
    if not given.keys() <= hints.keys():
        raise ValueError(f"unknown fields for {kind.__name__}")
    try:
        return kind(**{name: checked(hints[name], value) for name, value in given.items()})
    except TypeError as error:  # a field is missing
        raise ValueError(str(error)) from error


def printable(text: object, *, limit: int = 60) -> str:
    """Foreign text for one line of the log."""
    return ascii(str(text))[1:-1][:limit]
