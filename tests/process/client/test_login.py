"""What kubectl says while it waits, such as for the user to log in, is shown before it ends."""

import os
import stat
from pathlib import Path

import pytest

from dtj_client import stderr
from dtj_client.errors import ClientError
from dtj_client.kubectl import Kubectl

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
