"""Checks a dashboard against Grafana's own schema, from which the classes of Grafana's SDK are generated.

The SDK ignores fields that it does not know and does not check types, so both are done here.
"""

from __future__ import annotations

import functools
import json
import typing
from collections.abc import Iterator
from typing import Any

from grafana_foundation_sdk.cog import plugins, runtime
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard, Panel
from pydantic import ConfigDict, TypeAdapter, ValidationError

Json = dict[str, Any]


def problems(dashboard: Json) -> list[str]:
    """Return what the schema does not allow, each with its place; empty if the dashboard is valid."""
    plugins.register_default_plugins()
    try:
        read = Dashboard.from_json(dashboard)
    except (AttributeError, TypeError) as error:  # a list or an object was expected
        return [str(error)]
    written = json.loads(json.dumps(read, cls=JSONEncoder))
    return [*unread(dashboard, written, ""), *mistyped(read, Dashboard, "")]


def unread(given: object, written: object, place: str) -> Iterator[str]:
    """Yield what is lost when the SDK reads a document and writes it again."""
    if isinstance(given, dict) and isinstance(written, dict):
        for key, value in given.items():
            if key in written:
                yield from unread(value, written[key], f"{place}.{key}")
            else:
                yield f"{place}.{key}: no such field"
    elif isinstance(given, list) and isinstance(written, list):
        for number, (one, other) in enumerate(zip(given, written, strict=True)):
            yield from unread(one, other, f"{place}[{number}]")
    elif given != written:
        yield f"{place}: {given!r} is read as {written!r}"


def mistyped(value: object, kind: Any, place: str) -> Iterator[str]:
    """Yield the places of values of the wrong type, in an object of the SDK and in what it holds."""
    try:
        if value is None or isinstance(value, str | int | float):
            validator(kind).validate_json(json.dumps(value), strict=True)  # "left" is a value of an enum
        else:
            validator(kind).validate_python(value, strict=True)
    except ValidationError as error:
        yield f"{place}: {error.errors()[0]['msg']}, not {value!r}"
        return
    if isinstance(value, runtime.UnknownDataquery):
        yield f"{place}: a query of an unknown kind of data source"
    elif isinstance(value, Panel) and runtime.panelcfg_config(value.type_val) is None:
        yield f"{place}: unknown kind of panel {value.type_val!r}"
    if isinstance(value, list):
        for number, each in enumerate(value):
            yield from mistyped(each, type(each), f"{place}[{number}]")
    elif type(value).__module__.startswith("grafana_foundation_sdk."):
        for name, expected in typing.get_type_hints(type(value)).items():
            yield from mistyped(getattr(value, name), expected, f"{place}.{name}")


@functools.cache
def validator(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind, config=ConfigDict(arbitrary_types_allowed=True))
