"""Reads YAML and JSON as kubectl does.

What PyYAML takes for a date, or for a number to base 60 (1:30), stays text. JSON may have tabs and escapes
that YAML 1.1 does not have.
"""

import codecs
import json
import sys
from pathlib import Path
from typing import Any

import yaml

from dtj_client.errors import ClientError

_TAG = "tag:yaml.org,2002:"


class _Loader(yaml.SafeLoader):
    def resolve(self, kind: Any, value: Any, implicit: Any) -> Any:
        """The type of a value that has no quotes."""
        found = super().resolve(kind, value, implicit)  # type: ignore[no-untyped-call]
        is_sixty = found in (f"{_TAG}int", f"{_TAG}float") and ":" in value
        return f"{_TAG}str" if is_sixty or found == f"{_TAG}timestamp" else found


def contents(path: str) -> bytes:
    """The bytes of a file; `-` is standard input. Raises ClientError."""
    try:
        if path != "-":
            return Path(path).read_bytes()
        if sys.stdin is None:  # the shell has closed it
            raise ClientError("standard input is closed", "name a file")
        return sys.stdin.buffer.read()
    except OSError as error:
        name = "standard input" if path == "-" else path
        raise ClientError(f"cannot read {name}: {error.strerror}", "name another file") from error


def decoded(data: bytes, errors: str = "strict") -> str:
    """The text of a file: UTF-8 in every locale, or UTF-16 as of PowerShell. Raises UnicodeDecodeError."""
    is_utf16 = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    return data.decode("utf-16" if is_utf16 else "utf-8-sig", errors)


def documents(text: str, wrong: str = "this is not YAML", fix: str = "") -> list[Any]:
    """All documents that are not empty. Raises ClientError: `wrong`, what it is and where, and the fix."""
    try:
        found = [json.loads(text)]
    except ValueError:
        try:
            found = list(yaml.load_all(text, _Loader))
        except yaml.YAMLError as error:
            raise ClientError(f"{wrong}: {_problem(error)}", fix) from error
    return [each for each in found if each is not None]


def _problem(error: yaml.YAMLError) -> str:
    """What is wrong, and where, without the lines that the parser quotes."""
    problem: str | None = getattr(error, "problem", None)
    place: Any = getattr(error, "problem_mark", None)
    where = "" if place is None else f" in line {place.line + 1}, column {place.column + 1}"
    return f"{problem or ' '.join(str(error).split())}{where}"


def objects(text: str, wrong: str, fix: str) -> list[Any]:
    """The same; instead of a List, as kubectl prints it, its objects."""
    found: list[Any] = []
    for each in documents(text, wrong, fix):
        items = each.get("items") if isinstance(each, dict) and each.get("kind") == "List" else None
        found += items if isinstance(items, list) else [each]
    return found
