"""What Tab completes."""

import tomllib
from pathlib import Path

import pytest

from dtj_client.cli import commands as cli
from dtj_client.cli.completion import main
from dtj_client.errors import ClientError
from dtj_client.kube.kubectl import Kubectl


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["even"], ["events\tList what the operator did and why.", ":4"]),
        (["logs", "di"], ["digits", ":4"]),
        (["-n", "team", "logs", ""], ["digits", "mnist", ":4"]),
        (["status", "-o", "j"], ["json", ":4"]),
        (["convert", ""], [":0"]),
        (["submit", "-f", ""], [":0"]),
        (["submit", "--", "tr"], [":0"]),
    ],
)
def test_completion(
    words: list[str], found: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Kubectl, "job_names", lambda _self: ["digits", "mnist"])
    main(words)
    assert capsys.readouterr().out.splitlines() == found


def test_no_error_is_completed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def refuse(_self: Kubectl) -> list[str]:
        raise ClientError("no cluster")

    monkeypatch.setattr(Kubectl, "job_names", refuse)
    main(["logs", ""])
    assert capsys.readouterr().out == ":4\n"


def test_each_verb_is_an_entry_point_for_dtj() -> None:
    project = tomllib.loads(Path("client/pyproject.toml").read_text())["project"]
    of_the_trainer = {"plot"}  # for files; `kubectl dtj plot` is ours
    assert project["entry-points"]["dtj.commands"].keys() == cli.dtj.commands.keys() - of_the_trainer
