"""Writes logged steps to the targets of `--metrics`, for other tools. Rank 0 only.

run.jsonl             JSON lines, for `dtj plot`; also for any other file name
run.csv               a table, one row per logged step
tensorboard:runs/a    a folder of event files

Write errors are ignored: a full disk loses lines, but neither stops the run nor keeps it from starting again.
"""

import contextlib
import csv
import errno
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from dtj.errors import RecipeError
from dtj.telemetry import sinks
from dtj.telemetry.say import say

TENSORBOARD = "tensorboard:"
# Fields of a line that are not curves.
_NOT_CURVES = ("step", "totalSteps", "epoch", "etaSeconds", "metrics")
# Errors that may pass; after any other the target is wrong.
_PASSING = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE, errno.ETIMEDOUT}


class MetricFile(Protocol):
    """Takes one logged step at a time; NaN and infinities are None already. OSError of the disk."""

    def write(self, reading: dict[str, Any], /) -> None: ...


class JsonLines:
    """One line per logged step, with the fields of /status in docs/contract.md; also one line per start.

    {"event": "start", "step": 120, "at": 1790000000.0}
    {"step": 130, "epoch": 3, "loss": 0.213, ..., "at": ...}
    """

    def __init__(self, path: Path, *, step: int) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self.write({"event": "start", "step": step})

    def write(self, fields: dict[str, Any]) -> None:
        with self._path.open("a") as file:
            file.write(json.dumps(fields | {"at": time.time()}) + "\n")


class Table:
    """One row per logged step. A value that appears later gets a new column, empty in earlier rows."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        with path.open(newline="", encoding="utf-8") as file:
            self._columns = next(csv.reader(file), [])

    def write(self, reading: dict[str, Any]) -> None:
        own = {"step": reading["step"], "epoch": reading["epoch"]}
        row = own | dict(curves(reading)) | own  # whatever the program calls its metrics
        new = [name for name in row if name not in self._columns]
        if new:
            self._widen(new)
        with self._path.open("a", newline="", encoding="utf-8") as file:
            csv.DictWriter(file, self._columns).writerow(row)

    def _widen(self, new: list[str]) -> None:
        with self._path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        wider = self._path.with_suffix(".csv.tmp")
        with wider.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, [*self._columns, *new])
            writer.writeheader()
            writer.writerows(rows)
        os.replace(wider, self._path)  # noqa: PTH105 - atomic: never leaves half a table
        self._columns += new


class TensorBoard:
    """Event files; TensorBoard hides the steps that are repeated after a restart."""

    def __init__(self, folder: Path, *, step: int) -> None:
        self._sink = sinks.TensorBoard(folder)
        self._sink.open(step + 1)

    def write(self, reading: dict[str, Any]) -> None:
        self._sink(reading["step"], dict(curves(reading)))


def absolute(target: str) -> str:
    """The target with an absolute path; RecipeError if its kind is unknown."""
    kind, colon, path = target.rpartition(":")
    if f"{kind}{colon}" not in {"", TENSORBOARD}:
        raise RecipeError(
            f"--metrics {target}: unknown kind {kind!r}",
            fix=f"write FILE.jsonl, FILE.csv or {TENSORBOARD}FOLDER",
        )
    return f"{kind}{colon}{Path(path).resolve()}"


class Target:
    """Ignores write errors. If it cannot be opened now, each line tries again."""

    def __init__(self, target: str, *, step: int) -> None:
        self._target, self._step = target, step
        self._file: MetricFile | None = None

    def open(self) -> MetricFile:
        self._file = self._file or _open(self._target, step=self._step)
        return self._file

    def write(self, reading: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):
            self.open().write(reading)


def open_for(target: str, *, step: int) -> Target:
    """Open a target of `--metrics`; RecipeError if a run that begins cannot write to it, whenever it tries.

    step  after which training continues
    """
    found = Target(target, step=step)
    try:
        found.open()
    except OSError as error:
        what = f"--metrics {target.removeprefix(TENSORBOARD)} cannot be written: {error.strerror}"
        if step == 0 and error.errno not in _PASSING:
            raise RecipeError(what, fix="choose a file in a writable folder") from error
        say(f"{what}; training continues, each line tries again")
    return found


def _open(target: str, *, step: int) -> MetricFile:
    if target.startswith(TENSORBOARD):
        return TensorBoard(Path(target.removeprefix(TENSORBOARD)), step=step)
    if target.endswith(".csv"):
        return Table(Path(target))
    return JsonLines(Path(target), step=step)


def curves(reading: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield (name, value) of what can be plotted over steps."""
    own = [(name, value) for name, value in reading.items() if name not in _NOT_CURVES]
    for name, value in (*own, *reading["metrics"].items()):
        if value is not None:
            yield name, value


def read(path: Path) -> list[dict[str, Any]]:
    """Lines of a JSON lines file that `JsonLines` has written completely; RecipeError if there are none."""
    found = []
    for line in path.read_text(errors="replace").splitlines() if path.is_file() else []:
        with contextlib.suppress(ValueError):
            fields = json.loads(line)
            if isinstance(fields, dict) and fields.keys() & {"event", "metrics"}:
                found.append(fields)
    if not found:
        raise RecipeError(
            f"{path} has no logged steps", fix="train with --metrics FILE.jsonl and pass that file"
        )
    return found
