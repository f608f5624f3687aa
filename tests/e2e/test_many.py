"""Many small jobs at once, as a sweep of parameters starts them."""

from __future__ import annotations

import subprocess

import pytest

from tests.e2e.conftest import TRAINER
from tests.support.kubectl import Json, Kubectl

JOBS = 100


def sleeper(name: str) -> Json:
    """Return a job of one pod that needs next to nothing and runs until it is deleted."""
    container = {
        "name": "trainer",
        "image": TRAINER,
        "command": ["sleep", "infinity"],
        "resources": {"requests": {"cpu": "1m", "memory": "1Mi"}},
    }
    pod = {"containers": [container], "terminationGracePeriodSeconds": 0}
    return {
        "apiVersion": "dtj.dev/v1alpha1",
        "kind": "DistributedTrainingJob",
        "metadata": {"name": name},
        "spec": {"template": {"spec": pod}},
    }


@pytest.mark.long(35)
def test_a_hundred_jobs_run_at_once(kubectl: Kubectl):
    """Fifty pods on each node: more than its processes were once allowed to be."""
    kubectl.apply(*[sleeper(f"job-{number}") for number in range(JOBS)])

    running = kubectl.command(
        "wait", "dtj", "--all", "--for=jsonpath={.status.phase}=Running", "--timeout=400s"
    )
    waited = subprocess.run(running, capture_output=True, text=True, check=False)
    assert waited.returncode == 0, waited.stderr[-2000:]
    pods = kubectl.list("pods", "dtj.dev/job-name")
    assert [pod["status"]["phase"] for pod in pods] == ["Running"] * JOBS
    events = kubectl.list("events")
    assert [event["message"] for event in events if event["reason"] == "FailedCreatePodSandBox"] == []
