"""`dtj` runs commands of other installed packages."""

import os
import sys
import tomllib
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from typing import NoReturn

import pytest

from dtj.cli import commands as cli


def verb(argv: list[str]) -> NoReturn:
    """Stand for a command of another package."""
    print("ran", argv)
    sys.exit(7)


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make `submit` and `run` commands of another package."""
    found = EntryPoints(EntryPoint(name, f"{__name__}:verb", "dtj.commands") for name in ("submit", "run"))
    monkeypatch.setattr(cli, "entry_points", found.select)


def outcome(*words: str) -> int | str | None:
    with pytest.raises(SystemExit) as ended:
        cli.main(list(words))
    return ended.value.code


def test_command_of_another_package_gets_all_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert outcome("submit", "--help") == 7
    assert capsys.readouterr().out == "ran ['submit', '--help']\n"


def test_verb_of_a_missing_client_names_its_package(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli, "entry_points", EntryPoints().select)
    assert outcome("submit", "--replicas", "2") == 78
    needs = "needs the package dtj-client\n  fix: pip install ./client, in a checkout of dtj\n"
    assert capsys.readouterr().err == f"dtj: dtj submit {needs}"
    assert outcome("--help") == 0
    assert "dtj-client: pip install ./client" in capsys.readouterr().out


def test_verbs_are_those_of_the_client() -> None:
    project = tomllib.loads(Path("client/pyproject.toml").read_text())["project"]
    assert project["entry-points"]["dtj.commands"].keys() == cli._OF_THE_CLIENT


def test_help_is_a_whole_sentence_a_command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert outcome("--help") == 0
    found = capsys.readouterr().out.partition("Commands:\n")[2].partition("\n\n")[0]
    assert not [line for line in found.splitlines() if not line.endswith(".") or line.endswith("...")]


def test_own_commands_win(capsys: pytest.CaptureFixture[str]) -> None:
    assert outcome("run", "--help") == 0
    assert "Run a training script" in capsys.readouterr().out


def test_help_names_the_commands_of_others(capsys: pytest.CaptureFixture[str]) -> None:
    assert outcome("--help") == 0
    assert capsys.readouterr().out.endswith("Jobs on a cluster:\n  submit\n")


@pytest.mark.parametrize("command", [("run", "train.py"), ("train", "dtj.recipes.digits:recipe")])
def test_words_of_submit_are_taken_and_those_without_an_effect_named(
    command: tuple[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "train.py").touch()
    monkeypatch.chdir(tmp_path)
    environ = dict(os.environ)
    monkeypatch.setattr(os, "environ", environ)
    monkeypatch.setattr(cli, "launch", lambda *_: 5)
    verb, target = command
    words = (
        *("--replicas", "4", "--image=me/mine", "--follow", "--env", "LR=3e-4", "--env=EMPTY=", "--cpu=4"),
        *("--memory", "16Gi", "--env-from=secret/a", "--env-from=secret/b"),
    )
    assert outcome(verb, *words, "--", target) == 5
    assert (environ["LR"], environ["EMPTY"]) == ("3e-4", "")
    assert capsys.readouterr().err == (
        "dtj: no effect on this machine: --replicas (--nproc N starts N ranks here), --image, --follow, "
        "--cpu, --memory, --env-from (--env sets variables here)\n"
    )


def test_modules_are_found_in_the_folders_of_the_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a cluster; Python itself reads PYTHONPATH when it starts."""
    (tmp_path / "train.py").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "environ", dict(os.environ))
    monkeypatch.setattr(sys, "path", ["/before"])
    monkeypatch.setattr(cli, "launch", lambda *_: 5)
    assert outcome("run", "--env", f"PYTHONPATH=src{os.pathsep}/lib", "train.py") == 5
    assert sys.path == [str(tmp_path / "src"), "/lib", "/before"]


def test_variable_without_a_value_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert outcome("train", "--env", "LR", "dtj.recipes.digits:recipe") == 78
    assert "--env LR: write NAME=VALUE" in capsys.readouterr().err
