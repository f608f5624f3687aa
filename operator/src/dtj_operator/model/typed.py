"""Typed objects from the JSON of users: an error names the field, its value, and what to write instead."""

import re
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")

LONGEST_SHOWN = 200  # characters of a wrong value in a message: a status must not become too long

_ENGLISH = {
    "int": "an integer",
    "str": "a string",
    "bool": "true or false",
    "object": "an object",
    "array": "a list",
}


class SpecError(Exception):
    """An invalid field: its name, its value, and what to write instead."""

    def __init__(self, field: str, value: object, fix: str) -> None:
        shown = repr(value)
        if len(shown) > LONGEST_SHOWN:
            shown = f"{shown[:LONGEST_SHOWN]}..."
        problem = "required value" if value is None else f"invalid value {shown}"
        super().__init__(f"{field}: {problem}: {fix}")
        self.field = field


def one_of(*words: str) -> msgspec.Meta:
    """A field that has one of these words."""
    return msgspec.Meta(pattern=f"^({'|'.join(words)})$")


def read(kind: type[T], raw: object, path: str) -> T:
    """Return the object at this path of the resource; raises SpecError for the first invalid field."""
    try:
        return msgspec.convert(raw, kind)
    except msgspec.ValidationError as error:
        problem, _, place = str(error).rstrip("`").partition(" - at `")
    below = place.rpartition("$")[2]
    missing = re.match(r"Object missing required field `(\w+)", problem)
    if missing:
        raise SpecError(f"{path}{below}.{missing[1]}", None, "must be set")
    raise SpecError(f"{path}{below}", _value_at(raw, below), f"must be {_expected(problem)}")


def _value_at(document: Any, path: str) -> object:
    for name, index in re.findall(r"\.(\w+)|\[(\d+)\]", path):
        document = document[name or int(index)]
    return document


def _expected(problem: str) -> str:
    """What msgspec expected, in English: "Expected `int | null`, got `str`" is "an integer"."""
    if words := re.search(r"\^\((.*)\)\$", problem):
        return f"one of {words[1].replace('|', ', ')}"
    kinds = problem.removeprefix("Expected ").partition(",")[0].replace("`", "").removesuffix(" | null")
    return re.sub(r"[a-z]+", lambda kind: _ENGLISH.get(kind[0], kind[0]), kinds).replace(" | ", " or ")
