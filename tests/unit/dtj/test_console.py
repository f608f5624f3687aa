"""How a terminal shows the ranks' lines."""

import pytest

from dtj.agent.console import TerminalConsole


def test_lines_are_shown_unchanged(capsys: pytest.CaptureFixture[str]) -> None:
    console = TerminalConsole()
    console.write(1, b"[rank 0] :x: [red]100[/red] :100:\n")
    console.close()
    assert capsys.readouterr().err.splitlines()[0] == "[rank 0] :x: [red]100[/red] :100:"
