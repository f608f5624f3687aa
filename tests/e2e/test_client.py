"""`kubectl dtj` as a researcher uses it: a folder, one command, an edited line, the same command again."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.support.kubectl import Kubectl
from tests.support.predicates import phase

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


TRAINS_ON = """
apiVersion: dtj.dev/v1alpha1
kind: DistributedTrainingJob
metadata: {name: long}
spec:
  replicas: 1
  elastic: {minReplicas: 1, maxReplicas: 2}
  template:
    spec:
      terminationGracePeriodSeconds: 5
      containers:
        - name: trainer
          image: ghcr.io/dtj-dev/trainer:0.1.0-cpu
          args: [train, "dtj.recipes.digits:recipe", epochs=100000]
"""


@pytest.fixture
def researcher(kubectl: Kubectl, tmp_path: Path) -> Kubectl:
    """Return kubectl for a user who has the role `edit` in the test's namespace and nothing else."""
    kubectl("create", "serviceaccount", "researcher")
    account = f"--serviceaccount={kubectl.namespace}:researcher"
    kubectl("create", "rolebinding", "researcher", "--clusterrole=edit", account)
    config = yaml.safe_load(kubectl.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": kubectl("create", "token", "researcher").strip()}
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump(config))
    path.chmod(0o600)
    return dataclasses.replace(kubectl, kubeconfig=path)


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


def test_every_verb_needs_no_more_rights_than_edit(researcher: Kubectl, tmp_path: Path):
    (tmp_path / "job.yaml").write_text(TRAINS_ON)

    def verb(*words: str) -> str:
        done = dtj(researcher, tmp_path, *words)
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        return done.stdout

    verb("submit", "-f", "job.yaml")
    researcher.until("dtj", "long", phase("Running"))
    researcher.follow("long-0", "step ")
    assert "long" in verb("get")
    assert "long: Running" in verb("status", "long")
    assert "long" in verb("top")
    assert "step" in verb("logs", "long", "--replica=0")
    assert "train" in verb("stacks", "long")
    verb("plot", "long", "-o", "long.png")
    assert (tmp_path / "long.png").read_bytes().startswith(b"\x89PNG")
    verb("templates")
    assert "BAD" not in verb("doctor")
    verb("scale", "long", "2")
    researcher.until("dtj", "long", lambda job: job["status"].get("ready") == "2/2")
    verb("suspend", "long")
    researcher.until("dtj", "long", phase("Suspended"))
    assert "Suspended" in verb("events", "long")
    verb("resume", "long")
    researcher.until("dtj", "long", phase("Running"))
    verb("stop", "--yes", "long")
    assert researcher.get("dtj", "long") is None


def test_folder_is_submitted_followed_edited_and_submitted_again(researcher: Kubectl, tmp_path: Path):
    (tmp_path / "train.py").write_text(PROGRAM)
    (tmp_path / "words.py").write_text("GREETING = 'hello'\n")
    first = dtj(researcher, tmp_path, "submit", "--replicas=2", "--name=first", "--follow", "--", "train.py")
    assert first.returncode == 0, first.stderr
    for replica in (0, 1):
        assert f"{replica}| [rank {replica}] hello 3" in first.stdout

    (tmp_path / "words.py").write_text("GREETING = 'goodbye'\nraise SystemExit(9)\n")
    second = dtj(
        researcher, tmp_path, "submit", "--replicas=2", "--name=second", "--follow", "--", "train.py"
    )
    assert (second.returncode, "second: Failed" in second.stderr) == (1, True), second.stderr

    shown = dtj(researcher, tmp_path, "status", "second").stdout
    assert "second: Failed" in shown
    assert "exit code 9" in shown
    again = dtj(researcher, tmp_path, "logs", "first", "--replica=1")
    assert "1| [rank 1] hello 3" in again.stdout
    assert "0|" not in again.stdout
