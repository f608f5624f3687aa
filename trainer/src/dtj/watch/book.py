"""Logged steps -> a file of JSON lines that any tool reads, and that `dtj plot` draws. Rank 0 only.

{"event": "start", "step": 120, "at": 1790000000.0}      once for each start: a restart is seen as such
{"step": 130, "epoch": 3, "loss": 0.213, ..., "at": ...}  fields of /status in docs/contract.md
"""

import json
import time
from pathlib import Path
from typing import Any

from dtj.errors import RecipeError


class Book:
    """Appends, and never raises once it is open: a full disk costs lines, not the run."""

    def __init__(self, path: Path, *, step: int) -> None:
        self._path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._append({"event": "start", "step": step})
        except OSError as error:
            raise RecipeError(
                f"--metrics {path} cannot be written: {error.strerror}",
                fix="name a file in a writable folder",
            ) from error

    def write(self, reading: dict[str, Any]) -> None:
        """One logged step; numbers that JSON does not have must be None already."""
        try:
            self._append(reading)
        except OSError:
            return

    def _append(self, fields: dict[str, Any]) -> None:
        with self._path.open("a") as file:
            file.write(json.dumps(fields | {"at": time.time()}) + "\n")


def read(path: Path) -> list[dict[str, Any]]:
    """Lines of a file, a torn last one left out; RecipeError where it has none."""
    found = []
    for line in path.read_text().splitlines() if path.is_file() else []:
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    if not found:
        raise RecipeError(f"{path} has no logged steps", fix="train with --metrics FILE and name that file")
    return found
