"""Logging in: what kubectl says while it waits for the user is shown, and it can ask on the terminal."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from dtj_client.errors import ClientError
from dtj_client.kube import stderr
from dtj_client.kube.kubectl import Kubectl

SCRIPT = """#!/bin/sh
echo 'open https://login.example.com' >&2
timeout 10 cat {go} >/dev/null
echo done
exit {code}
"""


@pytest.mark.parametrize("code", [0, 1])
def test_login_page_is_shown_while_kubectl_waits(
    code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It waits for a pipe that is opened once the page was shown."""
    go, program = tmp_path / "go", tmp_path / "kubectl"
    os.mkfifo(go)
    program.write_text(SCRIPT.format(go=go, code=code))
    program.chmod(stat.S_IRWXU)
    monkeypatch.setattr(stderr, "SHOWN_AFTER_S", 0.0)
    shows = stderr.Heard.show

    def show(said: stderr.Heard) -> None:
        shows(said)
        go.write_text("logged in")

    monkeypatch.setattr(stderr.Heard, "show", show)
    asked = Kubectl(program=str(program))
    if code:
        with pytest.raises(ClientError, match=r"open https://login\.example\.com"):
            asked.run("get", "pods")
    else:
        assert asked.run("get", "pods") == "done\n"
    assert capsys.readouterr().err == "open https://login.example.com\n"


def fake(folder: Path, text: str) -> Kubectl:
    program = folder / "kubectl"
    program.write_text(f"#!/bin/sh\n{text}\n")
    program.chmod(stat.S_IRWXU)
    return Kubectl(program=str(program))


@pytest.mark.parametrize("given", [None, "{}"])
def test_login_may_ask_on_the_terminal(given: str | None, tmp_path: Path) -> None:
    """As a program with a second factor does, whatever its standard input is."""
    asks = fake(tmp_path, "cat </dev/tty >/dev/null && echo logged in")
    call = f"Kubectl(program={asks.program!r}).run('create', given={given!r})"
    ask = f"from dtj_client.kube.kubectl import Kubectl; print({call})"
    spawn = f"import pty, sys; sys.exit(pty.spawn([sys.executable, '-c', {ask!r}]))"
    answer = "\N{END OF TRANSMISSION}"  # Ctrl-D
    command = [sys.executable, "-c", spawn]
    done = subprocess.run(command, input=answer, capture_output=True, text=True, check=False)
    assert "logged in" in done.stdout


def test_interrupt_does_not_stop_a_change(tmp_path: Path) -> None:
    changes = fake(tmp_path, "kill -INT $$; cat")
    assert changes.run("create", given="{}") == "{}"
    with pytest.raises(ClientError):
        changes.run("get")
