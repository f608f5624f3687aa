"""Values from a connection -> values of the expected type, or ValueError. Pure.

Anyone who reaches the port of replica 0 can send it any JSON. The check of a type is built once: replica 0 of
a large job checks thousands of messages a second.
"""

import dataclasses
import functools
import math
import types
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, get_args, get_origin, get_type_hints

_LARGEST = 2**53  # integers that JSON carries without loss everywhere

Check = Callable[[Any], Any]


def checked(kind: Any, value: Any) -> Any:
    """The value as a plain type, `X | None`, `dict[int, X]`, a tuple, a NamedTuple or a dataclass."""
    return _check(kind)(value)


@functools.cache
def _check(kind: Any) -> Check:
    origin, of = get_origin(kind), get_args(kind)
    if origin is types.UnionType:
        return _optional(_check(next(option for option in of if option is not type(None))))
    if origin in {dict, Mapping}:
        return _mapping(int if of[0] is int else str, _check(of[1]))
    if origin is tuple:
        return _sequence(tuple(map(_check, of)), len(of), tuple)
    if dataclasses.is_dataclass(kind):
        return _fields(kind, {name: _check(hint) for name, hint in get_type_hints(kind).items()})
    if isinstance(kind, type) and issubclass(kind, tuple):
        values = tuple(map(_check, get_type_hints(kind).values()))
        least = len(values) - len(getattr(kind, "_field_defaults", ()))
        return _sequence(values, least, lambda found: kind(*found))
    return _plain(kind)


def _plain(kind: Any) -> Check:
    if kind is datetime:
        return _moment

    def check(value: Any) -> Any:
        if kind is float and type(value) is int:
            value = float(value)
        if type(value) is not kind:
            raise ValueError(f"expected {kind.__name__}, got {type(value).__name__}")
        if (kind is int and abs(value) > _LARGEST) or (kind is float and not math.isfinite(value)):
            raise ValueError("the number is too large")
        return value

    return check


def _moment(value: Any) -> datetime:
    found = datetime.fromisoformat(_of(str, value))
    if found.tzinfo is None:
        raise ValueError("a time without its zone cannot be compared")
    return found


def _optional(of: Check) -> Check:
    return lambda value: None if value is None else of(value)


def _mapping(key: type[int] | type[str], of: Check) -> Check:
    return lambda value: {key(name): of(each) for name, each in _of(dict, value).items()}


def _sequence(of: tuple[Check, ...], least: int, build: Callable[[list[Any]], Any]) -> Check:
    def check(value: Any) -> Any:
        if not least <= len(_of(list, value)) <= len(of):
            raise ValueError(f"expected {len(of)} values, got {len(value)}")
        return build([each(found) for each, found in zip(of, value, strict=False)])

    return check


def _fields(kind: Any, of: Mapping[str, Check]) -> Check:
    def check(value: Any) -> Any:
        if not _of(dict, value).keys() <= of.keys():
            raise ValueError(f"unknown fields for {kind.__name__}")
        try:
            return kind(**{name: of[name](each) for name, each in value.items()})
        except TypeError as error:  # a field is missing
            raise ValueError(str(error)) from error

    return check


def _of(kind: type, value: Any) -> Any:
    if not isinstance(value, kind):
        found = type(value).__name__
        raise ValueError(f"expected {kind.__name__}, got {found}")  # noqa: TRY004 - callers catch one class
    return value


def printable(text: object) -> str:
    """At most 60 characters of foreign text, for one line of the log."""
    return ascii(str(text))[1:-1][:60]
