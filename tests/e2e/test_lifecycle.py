"""Suspension and deletion, on real kubelets."""

from __future__ import annotations

import pytest

from tests.e2e.conftest import UNTIL_STOPPED, shell_job, workload_job
from tests.e2e.test_recovery import steps_done
from tests.support.kubectl import Json, Kubectl
from tests.support.predicates import phase

OURS = "dtj.dev/job-name"


@pytest.mark.long(40)
def test_suspended_job_resumes_at_the_committed_step(kubectl: Kubectl, runs: Json):
    kubectl.apply(
        workload_job("pause", "--steps=100000", "--save-every=100000", "--step-s=0.1", checkpoint=runs)
    )
    kubectl.until("dtj", "pause", phase("Running"))
    kubectl.follow("pause-1", "did step 20 ")

    kubectl("patch", "dtj", "pause", "--type=merge", "-p", '{"spec":{"suspend":true}}')
    kubectl.until("dtj", "pause", phase("Suspended"))
    kubectl.until_gone("pods", selector=OURS)
    assert kubectl.get("service", "pause"), "the Service stays while the job is suspended"

    kubectl("patch", "dtj", "pause", "--type=merge", "-p", '{"spec":{"suspend":false}}')
    kubectl.until("dtj", "pause", phase("Running"))
    kubectl.follow("pause-0", "did step ")

    # No checkpoint is due before the last step: only the agreed stop on SIGTERM can have committed this one.
    assert min(steps_done(kubectl, "pause-0")) > 20
    assert kubectl.get("dtj", "pause")["status"]["restarts"]["counted"] == 0  # type: ignore[index]


def test_deletion_of_a_running_job_leaves_nothing(kubectl: Kubectl):
    cascades = ("background", "foreground")
    kubectl.apply(*[shell_job(cascade, UNTIL_STOPPED) for cascade in cascades])
    for cascade in cascades:
        kubectl.until("dtj", cascade, phase("Running"))

    for cascade in cascades:
        kubectl("delete", "dtj", cascade, f"--cascade={cascade}", "--timeout=60s")

    for kind in ("pods", "services", "networkpolicies"):
        kubectl.until_gone(kind, selector=OURS)


def test_orphaned_pods_run_on_without_their_job(kubectl: Kubectl):
    kubectl.apply(shell_job("left", UNTIL_STOPPED))
    kubectl.until("dtj", "left", phase("Running"))
    before = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in kubectl.list("pods", OURS)}

    kubectl("delete", "dtj", "left", "--cascade=orphan", "--timeout=60s")
    # Once the operator has handled a later deletion, it has handled this one.
    kubectl.apply(shell_job("later", UNTIL_STOPPED))
    kubectl.until("dtj", "later", phase("Running"))
    kubectl("delete", "dtj", "later", "--timeout=60s")
    kubectl.until_gone("pods", selector=f"{OURS}=later")

    pods = kubectl.list("pods", OURS)
    assert {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in pods} == before
    for pod in pods:
        assert "ownerReferences" not in pod["metadata"]
        assert "deletionTimestamp" not in pod["metadata"]
    assert kubectl.get("service", "left"), "the ranks still find each other"
