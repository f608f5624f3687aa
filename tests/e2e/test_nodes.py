"""A node of a running job is lost: the job moves to other nodes, no old pod runs when the node returns."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest

from tests.cluster import config, faults
from tests.cluster.kind import Cluster
from tests.e2e.conftest import workload_job
from tests.e2e.test_healing import uids
from tests.e2e.test_recovery import steps_done
from tests.support.kubectl import Json, Kubectl
from tests.support.predicates import condition, phase


@pytest.mark.long(60)
@pytest.mark.parametrize("fault", [faults.without_power, faults.paused])
def test_job_moves_off_a_lost_node(
    cluster: Cluster,
    kubectl: Kubectl,
    runs: Json,
    fault: Callable[[Cluster, str], AbstractContextManager[None]],
):
    kubectl.apply(job_on_the_spare_node("moving", checkpoint=runs, recovery={"avoidNodeAfterFaults": 1}))
    kubectl.until("dtj", "moving", phase("Running"))
    for name in ("moving-0", "moving-1"):
        kubectl.follow(name, "did step 12 ")
    # Only an agent that has answered before can fall silent; on a busy machine its first answers may be late.
    kubectl.until("dtj", "moving", lambda job: job["status"].get("progress", {}).get("step"))
    before = uids(kubectl, "moving")
    lost = cluster.spare
    (moved,) = [name for name in before if node_of(kubectl, name) == lost]

    with fault(cluster, lost):
        job = kubectl.until("dtj", "moving", recovered(disruptions=1), within_s=360)
        assert job["status"]["failure"]["reason"] == "NodeLost"
        assert job["status"]["failure"]["node"] == lost
        # Kubernetes reports NotReady after 50 s, and nodeLostSeconds starts then; the operator did not wait.
        assert "the agent is silent and the node's Lease expired" in job["status"]["failure"]["message"]
        assert job["status"]["restarts"]["counted"] == 0, "a lost node does not count as a restart"
        assert [each["node"] for each in job["status"]["avoidedNodes"]] == [lost]
        kubectl.follow(moved, "did step ")
        assert min(steps_done(kubectl, moved)) > 5, "the new pod resumed from the checkpoint"
        assert lost not in {node_of(kubectl, name) for name in before}

    assert uids(kubectl, "moving")[moved] != before[moved]
    until_dead(cluster, lost, before[moved])
    kubectl.until("dtj", "moving", condition("Healthy"))  # on a busy machine a rank may be slow for a moment


def job_on_the_spare_node(name: str, **spec: Any) -> Json:
    """Return a job of two replicas on two nodes, of which one is the spare one while that is there."""
    job = workload_job(name, "--steps=100000", "--step-s=0.2", **spec)
    on_spare = {"matchExpressions": [{"key": config.SPARE, "operator": "Exists"}]}
    apart = {
        "labelSelector": {"matchLabels": {"dtj.dev/job-name": name}},
        "topologyKey": "kubernetes.io/hostname",
    }
    job["spec"]["template"]["spec"] |= {
        "tolerations": [{"key": config.SPARE, "operator": "Exists"}],
        "affinity": {
            "nodeAffinity": {
                "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "preference": on_spare}]
            },
            "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [apart]},
        },
    }
    return job


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
