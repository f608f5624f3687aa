"""In-place recovery: the surviving replicas keep their state and repeat no step."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.cluster import faults
from tests.cluster.kind import Cluster
from tests.e2e.conftest import no_other_placement, workload_job
from tests.e2e.test_recovery import steps_done
from tests.support.kubectl import Json, Kubectl
from tests.support.predicates import condition, phase

ENDLESS = ("--steps=1000000", "--step-s=0.1")  # so that the job still trains at a fault, however late that is


def uids(kubectl: Kubectl, job: str) -> dict[str, str]:
    """Return the uid of each pod of a job."""
    pods = kubectl.list("pods", f"dtj.dev/job-name={job}")
    return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in pods}


@pytest.mark.long(45)
def test_killed_ranks_are_restarted_in_the_same_pods(cluster: Cluster, kubectl: Kubectl):
    """SIGKILL from the node, to each rank in turn. No checkpoint: the survivor's memory has the state."""
    kubectl.apply(workload_job("heal", *ENDLESS))
    kubectl.follow("heal-0", "did step 3 ")
    before = uids(kubectl, "heal")

    for times, lost in enumerate((1, 0), start=1):
        survivor = f"heal-{1 - lost}"
        earlier = steps_done(kubectl, survivor)
        faults.signal_rank(cluster, kubectl, f"heal-{lost}", "KILL")
        # The survivor does not get so far before the other rank is back.
        kubectl.follow(f"heal-{lost}", f"did step {steps_done(kubectl, survivor)[-1] + 5} ")
        job = kubectl.until("dtj", "heal", restarted_in_place(times))
        assert job["status"]["attempt"] == 0
        assert_no_step_twice(steps_done(kubectl, survivor)[len(earlier) - 1 :])
        assert f"dtj: rank {lost} was killed by SIGKILL" in kubectl("logs", f"heal-{lost}")

    finish(kubectl, "heal")
    assert uids(kubectl, "heal") == before


def finish(kubectl: Kubectl, name: str) -> Json:
    """End the training and return the job once it is complete; both replicas end with the same step."""
    kubectl("exec", f"{name}-0", "--", "touch", "/tmp/finish")
    job = kubectl.until("dtj", name, condition("Complete"))
    assert steps_done(kubectl, f"{name}-0")[-1] == steps_done(kubectl, f"{name}-1")[-1]
    return job


def restarted_in_place(times: int) -> Callable[[Json], bool]:
    """Return a predicate: ranks of the job were restarted in their pods so many times."""
    return lambda job: job["status"].get("restarts", {}).get("inPlace") == times


def blames(**expected: object) -> Callable[[Json], bool]:
    """Return a predicate: the job's last failure has these values."""
    return lambda job: expected.items() <= job["status"].get("failure", {}).items()


def assert_no_step_twice(steps: list[int]) -> None:
    """The steps follow each other."""
    assert steps == list(range(steps[0], steps[0] + len(steps)))


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


def test_pod_whose_gpu_cannot_be_used_is_replaced_on_another_node(kubectl: Kubectl):
    """The ranks raise what dtj raises for a broken GPU: these nodes have none."""
    crash = ("--crash=gpu", "--crash-at=0", "--crash-rank=1")
    kubectl.apply(workload_job("gpu", "--steps=100", "--step-s=0.1", *crash, recovery={"scope": "Replica"}))

    status = kubectl.until("dtj", "gpu", lambda job: job.get("status", {}).get("avoidedNodes"))["status"]
    failure, (avoided,) = status["failure"], status["avoidedNodes"]
    assert (failure["replica"], failure["reason"]) == (1, "DeviceFault")
    assert (avoided["node"], avoided["faults"]) == (failure["node"], 2)

    restarts = kubectl.until("dtj", "gpu", condition("Complete"), within_s=300)["status"]["restarts"]
    pod = kubectl.get("pod", "gpu-1")
    assert (restarts["counted"], restarts.get("inPlace", 0)) == (1, 0), "that machine would fail again"
    assert pod is not None
    assert pod["spec"]["nodeName"] != failure["node"]


@pytest.mark.long(75)
def test_drained_pod_saves_with_all_replicas_and_costs_no_restart(kubectl: Kubectl, runs: Json):
    kubectl.apply(workload_job("drained", *ENDLESS, checkpoint=runs))
    kubectl.follow("drained-1", "did step 12 ")
    node = kubectl.get("pod", "drained-1")["spec"]["nodeName"]  # type: ignore[index]

    with no_other_placement():
        try:
            flags = ("--ignore-daemonsets", "--delete-emptydir-data", "--force")
            kubectl("drain", node, "--pod-selector=dtj.dev/job-name=drained", *flags)
        finally:
            kubectl("uncordon", node)

    kubectl.follow("drained-1", "did step ")
    job = finish(kubectl, "drained")
    assert job["status"]["restarts"]["counted"] == 0
    assert job["status"]["restarts"]["disruptions"] >= 1
    done = steps_done(kubectl, "drained-1")
    assert_no_step_twice(done)
    assert done[0] > 12, "the new pod resumed at the committed step, not at the start"


@pytest.mark.long(70)
def test_new_pods_resume_at_the_step_of_the_survivor(kubectl: Kubectl):
    """Replica 0 runs the coordinator: the survivor finds the new pod under the same name."""
    kubectl.apply(workload_job("pods", *ENDLESS))
    kubectl.follow("pods-0", "did step 3 ")
    kubectl.until("dtj", "pods", lambda job: job["status"].get("memory", {}).get("rejoins"))

    for lost in (1, 0):
        name, survivor = f"pods-{lost}", f"pods-{1 - lost}"
        before = uids(kubectl, "pods")
        earlier = steps_done(kubectl, survivor)
        node = (kubectl.get("pod", name) or {})["spec"]["nodeName"]
        kubectl("delete", "pod", name, "--grace-period=0", "--force")
        # Any step of the new pod: the old one continues until its kubelet ends it, for some steps.
        kubectl.follow(name, "did step ")

        kubectl.until("dtj", "pods", blames(reason="Evicted", replica=lost, node=node))
        # While a job recovers, it takes a pod that vanishes for one that does not exist yet.
        kubectl.until("dtj", "pods", phase("Running"))
        after = uids(kubectl, "pods")
        assert [pod for pod in after if after[pod] != before[pod]] == [name]
        assert_no_step_twice(steps_done(kubectl, survivor)[len(earlier) - 1 :])
        assert steps_done(kubectl, name)[0] > earlier[-1], "the new pod does not start at step 1"

    assert finish(kubectl, "pods")["status"]["attempt"] == 0
