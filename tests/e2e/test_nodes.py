"""A node of a running job is lost: the job moves to other nodes, no old pod runs when the node returns."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest

from tests.cluster import faults
from tests.cluster.kind import Cluster
from tests.e2e.conftest import workload_job
from tests.e2e.test_recovery import steps_done
from tests.support.kubectl import Json, Kubectl
from tests.support.predicates import condition, phase

OURS = "dtj.dev/job-name"


@pytest.mark.exclusive
@pytest.mark.long(50)
@pytest.mark.parametrize("fault", [faults.without_power, faults.paused])
def test_job_moves_off_a_lost_node(
    cluster: Cluster,
    kubectl: Kubectl,
    runs: Json,
    fault: Callable[[Cluster, str], AbstractContextManager[None]],
):
    recovery = {"avoidNodeAfterFaults": 1}
    kubectl.apply(
        workload_job("moving", "--steps=100000", "--step-s=0.2", checkpoint=runs, recovery=recovery)
    )
    kubectl.until("dtj", "moving", phase("Running"), within_s=120)
    kubectl.follow("moving-1", "did step 12 ")
    before = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in kubectl.list("pods", OURS)}
    lost = node_of(kubectl, "moving-1")

    with fault(cluster, lost):
        job = kubectl.until("dtj", "moving", recovered(disruptions=1), within_s=240)
        assert job["status"]["failure"]["reason"] == "NodeLost"
        assert job["status"]["failure"]["node"] == lost
        # Kubernetes reports NotReady after 50 s, and nodeLostSeconds starts then; the operator did not wait.
        assert "the agent is silent and the node's Lease expired" in job["status"]["failure"]["message"]
        assert job["status"]["restarts"]["counted"] == 0, "a lost node does not count as a restart"
        assert [each["node"] for each in job["status"]["avoidedNodes"]] == [lost]
        kubectl.follow("moving-1", "did step ")
        assert min(steps_done(kubectl, "moving-1")) > 5, "the new pod resumed from the checkpoint"
        assert lost not in (node_of(kubectl, "moving-0"), node_of(kubectl, "moving-1"))

    after = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in kubectl.list("pods", OURS)}
    assert after["moving-1"] != before["moving-1"]
    until_dead(cluster, lost, before["moving-1"])
    assert condition("Healthy")(kubectl.get("dtj", "moving") or {})


def until_dead(cluster: Cluster, node: str, uid: str, within_s: float = 60) -> None:
    """Wait until no process of the pod runs on its node: a kubelet that was paused learns of it late."""
    deadline = time.monotonic() + within_s
    while uid in faults.pods_alive(cluster, node):
        assert time.monotonic() < deadline, f"pod {uid} is still running on {node} after {within_s} s"
        time.sleep(0.5)


def recovered(*, disruptions: int) -> Callable[[Json], bool]:
    """Return a predicate: the job is Running again after this number of disruptions."""
    return lambda job: (
        phase("Running")(job) and job["status"].get("restarts", {}).get("disruptions") == disruptions
    )


def node_of(kubectl: Kubectl, pod: str) -> str:
    """Return the node of a pod."""
    found = kubectl.get("pod", pod)
    assert found is not None
    name: str = found["spec"]["nodeName"]
    return name
