"""Words of the command line that cannot be used end it with a message, before an agent starts."""

import os
from pathlib import Path

import pytest

from dtj.cli import commands as cli

DIGITS = "dtj.recipes.digits:recipe"


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A folder with the script a.py; no agent starts."""
    (tmp_path / "a.py").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "environ", dict(os.environ))
    monkeypatch.setattr(cli, "launch", lambda *_: 0)


def outcome(words: str) -> int | str | None:
    with pytest.raises(SystemExit) as ended:
        cli.main(words.split())
    return ended.value.code


@pytest.mark.parametrize(
    ("words", "env", "message"),
    [
        pytest.param("run nowhere.py", {}, "script not found: nowhere.py", id="no such script"),
        pytest.param("run --nprocs 2 a.py", {}, "'--nproc'", id="a mistyped flag"),
        pytest.param(f"trian {DIGITS}", {}, "Did you mean 'train'?", id="a mistyped command"),
        pytest.param(
            "run --metrics tensorbord:x a.py", {}, "unknown kind 'tensorbord'", id="a mistyped kind"
        ),
        pytest.param("run", {}, "no script given", id="no script at all"),
        pytest.param("run --nproc 0 a.py", {}, "0 is not in the range", id="zero processes"),
        pytest.param("run --ranks a a.py", {}, "--ranks is 'a', expected comma-sep", id="invalid rank"),
        pytest.param("run --weights s3://b/run a.py", {}, "this must be a local path", id="weights at a URL"),
        pytest.param("run --nproc 2 a.py", {"WORLD_SIZE": "4"}, "WORLD_SIZE is 4", id="flag against pod"),
        pytest.param("run a.py", {"NNODES": "2"}, "MASTER_ADDR is not set", id="half an environment"),
        pytest.param(
            "run a.py", {"DTJ_HANG_ACTION": "restart"}, "expected Restart or Report", id="an action"
        ),
        pytest.param("run a.py", {"DTJ_HANG_SECONDS": "5m"}, "expected a number of seconds", id="seconds"),
        pytest.param("run a.py", {"DTJ_MAX_RESTARTS": "many"}, "expected a whole number", id="a number"),
        pytest.param("train", {}, "no recipe given", id="no recipe"),
        pytest.param("plot /nowhere.jsonl", {}, "'/nowhere.jsonl' does not exist", id="nothing to plot"),
        pytest.param("export . w.pt", {}, "there is no checkpoint in", id="nothing to export"),
        pytest.param(
            "export . none/w.pt", {}, "none does not exist\n  fix: create it", id="no target folder"
        ),
    ],
)
def test_bad_input_exits_78_with_a_message_and_a_fix(
    capsys: pytest.CaptureFixture[str], words: str, env: dict[str, str], message: str
) -> None:
    os.environ.update(env)
    assert outcome(words) == 78
    said = capsys.readouterr().err
    assert message in said
    assert said.startswith("dtj: ")
    assert "\n  fix: " in said


def test_help_of_a_recipe_is_its_signature(capsys: pytest.CaptureFixture[str]) -> None:
    assert outcome(f"train {DIGITS} --help") == 0
    said = capsys.readouterr().out
    assert said.startswith(f"Usage: dtj train {DIGITS} [key=value ...]")
    assert "  epochs        int    default 20\n" in said
