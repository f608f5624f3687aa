"""In-place recovery: the surviving replicas keep their state and repeat no step."""

from __future__ import annotations

import pytest

from tests.cluster import faults
from tests.cluster.kind import Cluster
from tests.e2e.conftest import workload_job
from tests.e2e.test_recovery import steps_done
from tests.support.kubectl import Json, Kubectl
from tests.support.predicates import condition

STEPS = 300  # of 0.1 s each: long enough that the job still trains at the fault, even on a slow machine


def uids(kubectl: Kubectl, job: str) -> dict[str, str]:
    """Return the uid of each pod of a job."""
    pods = kubectl.list("pods", f"dtj.dev/job-name={job}")
    return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in pods}


@pytest.mark.parametrize("rank", [0, 1])
def test_killed_rank_is_restarted_in_the_same_pods(cluster: Cluster, kubectl: Kubectl, rank: int):
    """SIGKILL from the node. There is no checkpoint, so the state comes from the survivor's memory."""
    kubectl.apply(workload_job("heal", f"--steps={STEPS}", "--step-s=0.1"))
    kubectl.follow("heal-0", "did step 3 ")
    before = uids(kubectl, "heal")

    faults.signal_rank(cluster, kubectl, f"heal-{rank}", "KILL")

    job = kubectl.until("dtj", "heal", condition("Complete"), within_s=300)
    assert job["status"]["attempt"] == 0
    assert job["status"]["restarts"]["inPlace"] == 1
    assert uids(kubectl, "heal") == before
    assert steps_done(kubectl, f"heal-{1 - rank}") == list(range(1, STEPS + 1))
    assert f"dtj: rank {rank} was killed by SIGKILL" in kubectl("logs", f"heal-{rank}")


def test_rank_that_exceeds_its_memory_limit_is_blamed_and_the_job_completes(kubectl: Kubectl):
    """The node's kernel enforces a real limit: it kills the container, or only the rank under cgroup v1."""
    crash = ("--crash=memory", "--crash-at=20", "--crash-rank=1")
    # Scope Auto would first have to learn that the agents can rejoin, which may take ten seconds.
    manifest = workload_job("greedy", "--steps=100", "--step-s=0.1", *crash, recovery={"scope": "Replica"})
    manifest["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"] = {"memory": "1Gi"}
    kubectl.apply(manifest)

    job = kubectl.until("dtj", "greedy", condition("Complete"), within_s=300)

    assert job["status"]["attempt"] == 0
    assert job["status"]["restarts"]["counted"] == 1
    failure = job["status"]["failure"]
    assert (failure["replica"], failure["reason"]) == (1, "OOMKilled")


@pytest.mark.exclusive
def test_drained_pod_saves_with_all_replicas_and_costs_no_restart(kubectl: Kubectl, runs: Json):
    kubectl.apply(workload_job("drained", f"--steps={STEPS}", "--step-s=0.1", checkpoint=runs))
    kubectl.follow("drained-1", "did step 12 ")
    node = kubectl.get("pod", "drained-1")["spec"]["nodeName"]  # type: ignore[index]

    try:
        flags = ("--ignore-daemonsets", "--delete-emptydir-data", "--force")
        kubectl("drain", node, "--pod-selector=dtj.dev/job-name=drained", *flags)
    finally:
        kubectl("uncordon", node)

    job = kubectl.until("dtj", "drained", condition("Complete"), within_s=300)
    assert job["status"]["restarts"]["counted"] == 0
    assert job["status"]["restarts"]["disruptions"] >= 1
    done = steps_done(kubectl, "drained-1")
    assert done == list(range(done[0], STEPS + 1)), (
        "the new pod resumed at the committed step, not at the start"
    )
    assert done[0] > 12


@pytest.mark.parametrize("lost", [0, 1])
def test_new_pod_resumes_at_the_step_of_the_survivor(kubectl: Kubectl, lost: int):
    """Replica 0 runs the coordinator: the survivor finds the new pod under the same name."""
    kubectl.apply(workload_job("pods", f"--steps={STEPS}", "--step-s=0.1"))
    kubectl.follow("pods-0", "did step 3 ")
    kubectl.until(
        "dtj", "pods", lambda job: job["status"].get("memory", {}).get("recoveryScope") == "Replica"
    )
    before = uids(kubectl, "pods")
    node = (kubectl.get("pod", f"pods-{lost}") or {})["spec"]["nodeName"]

    kubectl("delete", "pod", f"pods-{lost}", "--grace-period=0", "--force")

    job = kubectl.until("dtj", "pods", condition("Complete"), within_s=300)
    assert job["status"]["attempt"] == 0
    failure = job["status"]["failure"]
    assert (failure["reason"], failure["replica"], failure["node"]) == ("Evicted", lost, node)
    after = uids(kubectl, "pods")
    assert after[f"pods-{lost}"] != before[f"pods-{lost}"]
    assert after[f"pods-{1 - lost}"] == before[f"pods-{1 - lost}"]
    assert steps_done(kubectl, f"pods-{1 - lost}") == list(range(1, STEPS + 1))
