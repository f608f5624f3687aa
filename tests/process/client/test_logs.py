"""Following the logs of pods with a kubectl whose connections break."""

from __future__ import annotations

from pathlib import Path

import pytest

from dtj_client import logs
from dtj_client.kubectl import Kubectl

# One pod, which ends with the third of its logs. The first connection breaks between two lines of a second.
KUBECTL = """#!/bin/sh
cd "$(dirname "$0")"
case "$*" in
  *"get pod"*) [ -e 3 ] && phase=Succeeded || phase=Running; printf 'uid-1 %s' $phase ;;
  *--since=9m) touch 1; echo '2026-01-01T00:00:01.1Z one'; exit 1 ;;
  *--since-time=2026-01-01T00:00:01.1Z)
    touch 2; printf '2026-01-01T00:00:01.1Z one\\n2026-01-01T00:00:01.2Z two\\n' ;;
  *--since-time=2026-01-01T00:00:01.2Z)
    touch 3; printf '2026-01-01T00:00:01.2Z two\\n2026-01-01T00:00:09Z three\\n' ;;
esac
"""


def test_log_continues_after_a_broken_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "NEXT_POD_S", 0)
    program = tmp_path / "kubectl"
    program.write_text(KUBECTL)
    program.chmod(0o755)
    kubectl = Kubectl(program=str(program))
    found = logs.follow_job(kubectl, "digits", [0], "--since=9m", finished=(tmp_path / "3").exists)
    assert [line.text for line in found] == ["one", "two", "three"]
