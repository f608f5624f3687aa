"""A JSON object as Python holds it."""

from typing import Any

Json = dict[str, Any]


def without_none(fields: Json) -> Json:
    """Only those that have a value: the API server drops a null too."""
    return {name: value for name, value in fields.items() if value is not None}
