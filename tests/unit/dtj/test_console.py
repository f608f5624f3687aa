"""How a terminal shows the ranks' lines."""

import sys

import pytest

from dtj.agent.report.console import PlainConsole, TerminalConsole, choose_console


def test_lines_are_shown_unchanged(capsys: pytest.CaptureFixture[str]) -> None:
    console = TerminalConsole()
    console.write(1, b"[rank 0] :x: [red]100[/red] :100:\n")
    console.close()
    assert capsys.readouterr().err.splitlines()[0] == "[rank 0] :x: [red]100[/red] :100:"


@pytest.mark.parametrize(
    ("terminal", "as_json", "in_job", "kind"),
    [
        pytest.param(True, False, False, TerminalConsole, id="a terminal"),
        pytest.param(False, False, False, PlainConsole, id="a pipe"),
        pytest.param(True, True, False, PlainConsole, id="JSON"),
        pytest.param(True, False, True, PlainConsole, id="a terminal that several agents share"),
    ],
)
def test_bar_is_drawn_only_where_one_agent_has_a_terminal(
    monkeypatch: pytest.MonkeyPatch, terminal: bool, as_json: bool, in_job: bool, kind: type[object]
) -> None:
    for stream in (sys.stdout, sys.stderr):
        monkeypatch.setattr(stream, "isatty", lambda: terminal)
    assert isinstance(choose_console(as_json=as_json, in_job=in_job), kind)
