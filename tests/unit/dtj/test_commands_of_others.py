"""`dtj` runs commands of other installed packages."""

import sys
from importlib.metadata import EntryPoint, EntryPoints
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


def test_own_commands_win(capsys: pytest.CaptureFixture[str]) -> None:
    assert outcome("run", "--help") == 0
    assert "Run a training script" in capsys.readouterr().out


def test_help_names_the_commands_of_others(capsys: pytest.CaptureFixture[str]) -> None:
    assert outcome("--help") == 0
    assert capsys.readouterr().out.endswith("Jobs on a cluster:\n  submit\n")
