"""`kubectl dtj` as a researcher uses it: a folder, one command, an edited line, the same command again."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.support.kubectl import Kubectl

ROOT = Path(__file__).parents[2]
PROGRAM = """
import torch, torch.distributed as dist
from words import GREETING
dist.init_process_group("gloo")
total = torch.ones(1) * (dist.get_rank() + 1)
dist.all_reduce(total)
print(GREETING, int(total), flush=True)
dist.destroy_process_group()
"""


def dtj(kubectl: Kubectl, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run `kubectl dtj` in the folder, in the test's namespace."""
    path = f"{kubectl.binary.parent}{os.pathsep}{os.environ['PATH']}"
    options = (f"--kubeconfig={kubectl.kubeconfig}", f"--namespace={kubectl.namespace}")
    return subprocess.run(
        [sys.executable, "-m", "dtj_client.cli", *options, *words],
        cwd=folder,
        env={**os.environ, "PATH": path, "PYTHONPATH": str(ROOT / "client/src")},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )


def test_folder_is_submitted_followed_edited_and_submitted_again(kubectl: Kubectl, tmp_path: Path):
    (tmp_path / "train.py").write_text(PROGRAM)
    (tmp_path / "words.py").write_text("GREETING = 'hello'\n")
    first = dtj(kubectl, tmp_path, "submit", "--replicas=2", "--name=first", "--follow", "--", "train.py")
    assert first.returncode == 0, first.stderr
    for replica in (0, 1):
        assert f"{replica}| [rank {replica}] hello 3" in first.stdout

    (tmp_path / "words.py").write_text("GREETING = 'goodbye'\nraise SystemExit(9)\n")
    second = dtj(kubectl, tmp_path, "submit", "--replicas=2", "--name=second", "--follow", "--", "train.py")
    assert (second.returncode, "second: Failed" in second.stderr) == (1, True), second.stderr

    shown = dtj(kubectl, tmp_path, "status", "second").stdout
    assert "second: Failed" in shown
    assert "exit code 9" in shown
    again = dtj(kubectl, tmp_path, "logs", "first", "--replica=1")
    assert "1| [rank 1] hello 3" in again.stdout
    assert "0|" not in again.stdout
