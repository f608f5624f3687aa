"""Predicates over objects as the API server returns them, for tests to wait for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Json = dict[str, Any]


def condition(kind: str, status: str = "True", reason: str = "", *words: str) -> Callable[[Json], bool]:
    """Return a predicate: the object has this condition, this reason if one is given, and all these words."""

    def holds(seen: Json) -> bool:
        return any(
            each["type"] == kind and each["status"] == status and reason in ("", each["reason"])
            and all(word in each["message"] for word in words)
            for each in seen.get("status", {}).get("conditions", ())
        )  # fmt: skip

    return holds


def phase(*names: str) -> Callable[[Json], bool]:
    """Return a predicate: status.phase is one of these."""
    return lambda seen: seen.get("status", {}).get("phase") in names
