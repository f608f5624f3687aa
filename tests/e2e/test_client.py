"""`kubectl dtj` as a researcher uses it: a folder, one command, an edited line, the same command again."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.kubectl import Kubectl
from tests.support.predicates import phase

ROOT = Path(__file__).parents[2]
PATIENCE_S = 240.0
PROGRAM = """
import torch, torch.distributed as dist
from words import GREETING
dist.init_process_group("gloo")
total = torch.ones(1) * (dist.get_rank() + 1)
dist.all_reduce(total)
print(GREETING, int(total), flush=True)
dist.destroy_process_group()
"""


# Not a recipe, which would take all processor time.
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
          args: [run, /app/workload.py, --steps=1000000, --step-s=0.1]
          resources: {requests: {cpu: 100m}}
          volumeMounts: [{name: app, mountPath: /app}]
      volumes: [{name: app, configMap: {name: workload}}]
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


def program(kubectl: Kubectl, folder: Path, *words: str) -> dict[str, Any]:
    """`kubectl dtj` in the folder and the test's namespace, as the arguments of subprocess.Popen."""
    options = (f"--kubeconfig={kubectl.kubeconfig}", f"--namespace={kubectl.namespace}")
    path = f"{kubectl.binary.parent}{os.pathsep}{os.environ['PATH']}"
    return {
        "args": [sys.executable, "-m", "dtj_client", *options, *words],
        "cwd": folder,
        "env": {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT / "client/src")},
        "text": True,
    }


def dtj(kubectl: Kubectl, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run `kubectl dtj` to its end."""
    return subprocess.run(
        **program(kubectl, folder, *words), capture_output=True, check=False, timeout=PATIENCE_S
    )


def until_event(kubectl: Kubectl, reason: str) -> None:
    """Wait for an Event with this reason: the operator sends it after the status."""
    deadline = time.monotonic() + PATIENCE_S
    for _ in kubectl.watch("events", f"--field-selector=reason={reason}", deadline=deadline):
        return
    raise AssertionError(f"no Event {reason}")


@pytest.mark.long(35)
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
    assert "workload.py" in verb("stacks", "long")
    verb("plot", "long", "-o", "long.png")
    assert (tmp_path / "long.png").read_bytes().startswith(b"\x89PNG")
    verb("templates")
    assert "BAD" not in verb("doctor")
    verb("scale", "long", "2")
    researcher.until("dtj", "long", lambda job: job["status"].get("ready") == "2/2")
    verb("suspend", "long")
    researcher.until("dtj", "long", phase("Suspended"))
    until_event(researcher, "Suspended")
    assert "Suspended" in verb("events", "long")
    verb("resume", "long")
    researcher.until("dtj", "long", phase("Running"))
    verb("stop", "--yes", "long")
    assert researcher.get("dtj", "long") is None


@pytest.mark.long(40)
def test_folder_is_submitted_followed_edited_and_submitted_again(
    researcher: Kubectl, runs: dict[str, Any], tmp_path: Path
):
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

    ends = {name: dtj(researcher, tmp_path, "wait", name).returncode for name in ("first", "second")}
    assert ends == {"first": 0, "second": 1}
    assert "exit code 9" in dtj(researcher, tmp_path, "logs", "second", "--previous").stdout
    assert "second: Failed" in dtj(researcher, tmp_path, "logs", "second", "--follow").stderr
    assert dtj(researcher, tmp_path, "delete", "first").stdout == "first: deleted\n"

    (tmp_path / "words.py").write_text("GREETING = 'large'\n")
    (tmp_path / "weights.bin").write_bytes(os.urandom(1_000_000))
    claim = runs["volume"]["persistentVolumeClaim"]["claimName"]
    large = dtj(researcher, tmp_path, "submit", f"--code-claim={claim}", "--follow", "--", "train.py")
    assert large.returncode == 0, large.stderr
    assert f"through claim {claim}" in large.stderr
    assert "0| [rank 0] large 1" in large.stdout
    assert not [job for job in researcher.list("dtj") if job["metadata"]["name"].startswith("copy-code")]


def test_doctor_and_the_pages_see_into_real_pods(researcher: Kubectl, tmp_path: Path):
    """The pages reach the agent by `kubectl port-forward`, to which no NetworkPolicy applies."""
    (tmp_path / "job.yaml").write_text(TRAINS_ON)
    assert dtj(researcher, tmp_path, "submit", "-f", "job.yaml").returncode == 0
    tried = dtj(researcher, tmp_path, "doctor", "--try").stdout
    for line in (
        "pods: they start",
        "shared memory: 2.0 GiB",
        "name resolution: replica 1",
        "network: replica 1",
    ):
        assert f"ok   {line}" in tried, tried
    assert "network policies: enforced" in tried or "network policies: not enforced" in tried, tried
    assert [job["metadata"]["name"] for job in researcher.list("dtj")] == ["long"], "its jobs are deleted"

    researcher.follow("long-0", "step ")
    with subprocess.Popen(**program(researcher, tmp_path, "ui"), stdout=subprocess.PIPE) as ui:
        assert ui.stdout is not None
        address = ui.stdout.readline().removeprefix("jobs: ").strip()
        try:
            page = page_with_step_times(f"{address}api/job/{researcher.namespace}/long")
        finally:
            ui.terminate()
    assert page["heat"]["ranks"] == [0]
    assert page["heat"]["seconds"][-1][0] > 0
    assert page["curves"]["loss"]
    assert page["replicas"][0]["state"] == "Running"


def page_with_step_times(address: str) -> dict[str, Any]:
    """Ask as the page does, until the agent has answered."""
    ends = time.monotonic() + PATIENCE_S
    page: dict[str, Any] = {}
    while time.monotonic() < ends:
        with urllib.request.urlopen(address, timeout=PATIENCE_S) as answer:
            page = json.load(answer)
        if page["heat"]["ranks"] and page["curves"]["loss"]:
            return page
        time.sleep(0.5)
    raise AssertionError(f"no step times: {page}")
