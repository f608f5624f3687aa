"""How a terminal shows the ranks' lines."""

import os
import sys
import threading

import pytest

from dtj.agent.report.console import PlainConsole, TerminalConsole, choose_console


def test_lines_are_shown_unchanged(capsys: pytest.CaptureFixture[str]) -> None:
    console = TerminalConsole()
    console.write(1, b"[rank 0] :x: [red]100[/red] :100:\n")
    console.close()
    assert capsys.readouterr().err.splitlines()[0] == "[rank 0] :x: [red]100[/red] :100:"


def test_full_disk_under_the_log_does_not_end_the_run() -> None:
    with open("/dev/full", "wb", buffering=0) as full:  # noqa: PTH123 - a device
        PlainConsole().write(full.fileno(), b"a line\n")


def test_output_that_another_program_made_non_blocking_is_waited_for() -> None:
    read, write = os.pipe()
    os.set_blocking(write, False)
    line, found = b"x" * 100_000, bytearray()  # more than a pipe takes at a time

    def take() -> None:
        while len(found) < len(line):
            found.extend(os.read(read, len(line)))

    reader = threading.Thread(target=take)
    reader.start()
    PlainConsole().write(write, line)
    reader.join()
    assert found == line
    os.close(read)
    os.close(write)


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
