"""Reads YAML as kubectl does: what PyYAML takes for a date, or for a number to base 60 (1:30), stays text."""

from typing import Any

import yaml

_TAG = "tag:yaml.org,2002:"


class _Loader(yaml.SafeLoader):
    def resolve(self, kind: Any, value: Any, implicit: Any) -> Any:
        """The type of a value that has no quotes."""
        found = super().resolve(kind, value, implicit)  # type: ignore[no-untyped-call]
        is_sixty = found in (f"{_TAG}int", f"{_TAG}float") and ":" in value
        return f"{_TAG}str" if is_sixty or found == f"{_TAG}timestamp" else found


def documents(text: str) -> list[Any]:
    """All documents that are not empty. Raises yaml.YAMLError."""
    return [each for each in yaml.load_all(text, _Loader) if each is not None]
