"""Random documents: values that a schema of the CRD accepts, and documents with strange values in them."""

import json
from collections.abc import Iterator, Mapping
from copy import deepcopy
from functools import cache
from random import Random
from typing import Any

Json = dict[str, Any]

STRANGE: tuple[Any, ...] = (
    *(None, True, 0, -1, 1.5, 2**31, 2**63, 1e308, "", "x", "-1", "9" * 400, "é\U0001f600\x00\ud7ff"),
    *("1e999999999", "-1e-999999999", "9" * 5000, "x" * 40_000, "0-9999999999", "9999-12-31T23:59:59Z"),
    *("0001-01-01T00:00:00+14:00", "2026-01-01T00:00:00Z", "0000-00-00"),
    *([], [None], [[]], [{}], {}, {"": None}, {"a": {"b": ["c"]}}, [{"name": "trainer"}], {"cpu": "1e99"}),
)
TIMES = ("2027-01-15T08:00:00Z", "1970-01-01T00:00:00Z", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z")
WORDS = ("x", "trainer", "Never", "0-9", "team-a", "a b", "é\U0001f600", "x" * 60)


def sample(chance: Random, schema: Mapping[str, Any]) -> Any:
    """Return a value that the schema accepts, apart from its CEL rules and patterns.

    An optional field is there once in three times.
    """
    if "enum" in schema:
        return chance.choice(schema["enum"])
    if schema.get("x-kubernetes-int-or-string"):
        return chance.choice((1, 2, 1024, "auto", "Never"))
    match schema.get("type"):
        case "object":
            return _sample_object(chance, schema)
        case "array":
            return _sample_list(chance, schema)
        case "integer":
            bits = 31 if schema.get("format") == "int32" else 63
            low, high = schema.get("minimum", -(2**bits)), schema.get("maximum", 2**bits - 1)
            return chance.choice([n for n in (low, high, low + 1, 0, 1, 2, 3, 60) if low <= n <= high])
        case "boolean":
            return chance.random() < 0.5
        case "string" if schema.get("format") == "date-time":
            return chance.choice(TIMES)
        case "string":
            longest = schema.get("maxLength", 5000)
            return chance.choice((*WORDS, "x" * longest))[:longest]
    return deepcopy(chance.choice(STRANGE))


def _sample_object(chance: Random, schema: Mapping[str, Any]) -> Json:
    fields, required = schema.get("properties", {}), schema.get("required", ())
    least, most = schema.get("minProperties", 0), schema.get("maxProperties", len(fields))
    names = [name for name in fields if name in required or chance.random() < 0.33]
    if len(names) < least:
        names = [chance.choice(list(fields))]
    found = {name: sample(chance, fields[name]) for name in names[:most]}
    if "additionalProperties" in schema:
        found |= {word: sample(chance, schema["additionalProperties"]) for word in ("x", "app")}
    return found


def _sample_list(chance: Random, schema: Mapping[str, Any]) -> list[Any]:
    least = schema.get("minItems", 0)
    length = chance.randint(least, min(least + 3, schema.get("maxItems", 3)))
    items = [sample(chance, schema["items"]) for _ in range(length)]
    if schema.get("x-kubernetes-list-type") == "map":
        (key,) = schema["x-kubernetes-list-map-keys"]
        items = list({item[key]: item for item in items}.values())
    return items


def problems(value: Any, schema: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """Yield why the API server would refuse a status: wrong types, numbers and texts that are too long."""
    kinds = {"object": dict, "array": list, "integer": int, "string": str, "boolean": bool}
    kind = schema.get("type")
    if kind in kinds and (not isinstance(value, kinds[kind]) or (kind == "integer" and value is True)):
        yield f"{path}: {value!r} is not of type {kind}"
        return
    if value not in schema.get("enum", (value,)):
        yield f"{path}: {value!r} is not one of {schema['enum']}"
    match value:
        case dict():
            for name, child in schema.get("properties", {}).items():
                if name in value:
                    yield from problems(value[name], child, f"{path}.{name}")
            unknown = value.keys() - schema.get("properties", {}).keys()
            if unknown and not schema.get("x-kubernetes-preserve-unknown-fields"):
                yield f"{path}: unknown fields {sorted(unknown)}"
        case list():
            if len(value) > schema.get("maxItems", len(value)):
                yield f"{path}: {len(value)} items"
            for index, item in enumerate(value):
                yield from problems(item, schema.get("items", {}), f"{path}[{index}]")
        case str() if len(value) > schema.get("maxLength", len(value)):
            yield f"{path}: {len(value)} characters"
        case int():
            bits = 31 if schema.get("format") == "int32" else 63
            if not -(2**bits) <= value < 2**bits:
                yield f"{path}: {value} does not fit into {bits + 1} bits"


def places(node: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every value in a document."""
    children = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for name, child in children:
        yield (*path, name)
        yield from places(child, (*path, name))


@cache
def _places(text: str) -> list[tuple[Any, ...]]:
    return list(places(json.loads(text)))


def spoiled(chance: Random, text: str, *, most: int = 4) -> Any:
    """Parse this JSON and replace one to `most` of its values, inner ones before those that contain them."""
    document = json.loads(text)
    paths = chance.sample(_places(text), chance.randint(1, most))
    for *path, name in sorted(paths, key=len, reverse=True):
        node = document
        for step in path:
            node = node[step]
        node[name] = deepcopy(chance.choice(STRANGE))
    return document
