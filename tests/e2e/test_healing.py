"""Faults that the survivors of a training live through: they do no step twice."""

from __future__ import annotations

import pytest

from tests.cluster import faults
from tests.cluster.kind import Cluster
from tests.e2e.conftest import workload_job
from tests.e2e.test_recovery import steps_done
from tests.support.kubectl import Json, Kubectl
from tests.support.predicates import condition

STEPS = 300  # of a tenth of a second: it must still train when the fault comes, also on a slow machine


def uids(kubectl: Kubectl, job: str) -> dict[str, str]:
    """Return the uid of each pod of a job."""
    pods = kubectl.list("pods", f"dtj.dev/job-name={job}")
    return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in pods}


@pytest.mark.parametrize("rank", [0, 1])
def test_killed_rank_is_replaced_within_the_pods(cluster: Cluster, kubectl: Kubectl, rank: int):
    """SIGKILL from the node; there is no checkpoint, so what goes on comes from the survivor's memory."""
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


def test_rank_that_takes_too_much_memory_is_blamed_and_the_job_goes_on(kubectl: Kubectl):
    """A real limit, kept by the kernel of the node: it ends the container, under cgroup v1 the rank alone."""
    crash = ("--crash=memory", "--crash-at=20", "--crash-rank=1")
    # By itself the job would first have to learn that its agents can rejoin, which may take ten seconds.
    manifest = workload_job("greedy", "--steps=100", "--step-s=0.1", *crash, recovery={"scope": "Replica"})
    manifest["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"] = {"memory": "1Gi"}
    kubectl.apply(manifest)

    job = kubectl.until("dtj", "greedy", condition("Complete"), within_s=300)

    assert job["status"]["attempt"] == 0
    assert job["status"]["restarts"]["counted"] == 1
    failure = job["status"]["failure"]
    assert (failure["replica"], failure["reason"]) == (1, "OOMKilled")


@pytest.mark.exclusive
def test_drained_pod_saves_with_all_others_and_costs_no_restart(kubectl: Kubectl, runs: Json):
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
    assert done == list(range(done[0], STEPS + 1)), "it took up where the others had saved, not at the start"
    assert done[0] > 12


@pytest.mark.parametrize("lost", [0, 1])
def test_lost_pod_takes_up_the_step_of_the_other(kubectl: Kubectl, lost: int):
    """Replica 0 is the coordinator's: the survivor finds the new one under the same name."""
    kubectl.apply(workload_job("pods", f"--steps={STEPS}", "--step-s=0.1"))
    kubectl.follow("pods-0", "did step 3 ")
    kubectl.until("dtj", "pods", lambda job: job["status"].get("recoveryScope") == "Replica")
    before = uids(kubectl, "pods")
    node = (kubectl.get("pod", f"pods-{lost}") or {})["spec"]["nodeName"]

    kubectl("delete", "pod", f"pods-{lost}", "--grace-period=0", "--force")

    job = kubectl.until("dtj", "pods", condition("Complete"), within_s=300)
    assert job["status"]["attempt"] == 0
    told = job["status"]["failure"]
    assert (told["reason"], told["replica"], told["node"]) == ("Evicted", lost, node)
    after = uids(kubectl, "pods")
    assert after[f"pods-{lost}"] != before[f"pods-{lost}"]
    assert after[f"pods-{1 - lost}"] == before[f"pods-{1 - lost}"]
    assert steps_done(kubectl, f"pods-{1 - lost}") == list(range(1, STEPS + 1))
