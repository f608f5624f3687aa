"""The file of logged lines, and its picture."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from dtj.errors import RecipeError
from dtj.watch import book
from tests.unit.dtj.conftest import PROGRAMS, Finished

Finish = Callable[..., Finished]


def test_every_logged_line_and_every_start_is_written_and_drawn(finish: Finish, tmp_path: Path) -> None:
    file = tmp_path / "run.jsonl"
    for steps in (4, 7):
        ended = finish(
            *("run", "--nproc", 2, "--log-every", 1, "--metrics", file),
            *("--checkpoint", tmp_path / "run", PROGRAMS / "gpt.py"),
            OUT=tmp_path,
            STEPS=steps,
        )
        assert ended.code == 0, ended.err
    lines = book.read(file)
    assert [(line.get("event"), line["step"]) for line in lines] == [
        ("start", 0),
        *((None, step) for step in (1, 2, 3, 4)),
        ("start", 4),
        *((None, step) for step in (5, 6, 7)),
    ]
    losses = [float(x) for x in (tmp_path / "losses.txt").read_text().split()[:-1]]
    assert [line["loss"] for line in lines[-3:]] == pytest.approx(losses, rel=1e-6)

    ended = finish("plot", file)
    picture = tmp_path / "run.png"
    assert (ended.code, ended.out) == (0, f"{picture}: 7 logged steps\n"), ended.err
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_torn_last_line_is_left_out(tmp_path: Path) -> None:
    file = tmp_path / "run.jsonl"
    written = book.Book(file, step=3)
    written.write({"step": 4})
    with file.open("a") as torn:
        torn.write(json.dumps({"step": 5})[:-3])
    assert [line["step"] for line in book.read(file)] == [3, 4]


def test_file_that_cannot_be_is_told_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RecipeError, match=r"cannot be written: .*\n.*writable folder"):
        book.Book(tmp_path / "file" / "run.jsonl", step=0)
    with pytest.raises(RecipeError, match="has no logged steps"):
        book.read(tmp_path / "nothing")
