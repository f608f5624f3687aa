"""Gangs on real kubelets: needs a control plane that places them, `make e2e K8S=1.36`."""

from __future__ import annotations

import pytest

from tests.cluster import gang_releases
from tests.e2e.conftest import workload_job
from tests.e2e.test_healing import ENDLESS, finish
from tests.e2e.test_network import recovered
from tests.support.kubectl import Json, Kubectl
from tests.support.predicates import condition, phase


def large_job(name: str, replicas: int, *args: str) -> Json:
    """A job of which one pod fits on each worker: each pod takes more than half of its processors."""
    # Scope Auto would first have to learn that the agents can rejoin; until then it restarts the whole job.
    manifest = workload_job(name, *args, recovery={"scope": "Replica"})
    manifest["spec"]["replicas"] = replicas
    (container,) = manifest["spec"]["template"]["spec"]["containers"]
    container["resources"] = {"requests": {"cpu": "1100m", "memory": "300Mi"}}
    return manifest


def groups(kubectl: Kubectl, job: str) -> set[str | None]:
    """Return the PodGroups that the pods of a job name."""
    pods = kubectl.list("pods", f"dtj.dev/job-name={job}")
    return {(pod["spec"].get("schedulingGroup") or {}).get("podGroupName") for pod in pods}


def waits_as_a_whole(job: Json) -> bool:
    """Whether the status says that the gang waits; the scheduler writes that after the pods' conditions."""
    together = "the job's pods are scheduled only together" in job.get("status", {}).get("message", "")
    return together and condition("PodsReady", "False", "Unschedulable")(job)


@pytest.mark.exclusive
def test_gang_waits_as_a_whole_and_heals_on_older_kubelets(kubectl: Kubectl):
    served = kubectl("api-versions").split()
    if not any(release.api_version in served for release in gang_releases.RELEASES):
        pytest.skip("this control plane places no gangs; make e2e K8S=1.36")
    kubectl.apply(large_job("first", 1, "--steps=100000", "--step-s=0.2"))
    kubectl.until("dtj", "first", phase("Running"))

    kubectl.apply(large_job("second", 2, *ENDLESS))

    kubectl.until("dtj", "second", waits_as_a_whole)
    pods = kubectl.list("pods", "dtj.dev/job-name=second")
    assert [pod["spec"].get("nodeName") for pod in pods] == [None, None], "one of them would fit"

    kubectl("delete", "dtj", "first")
    kubectl.until("dtj", "second", phase("Running"))
    kubectl.follow("second-1", "did step 3 ")
    assert groups(kubectl, "second") == {"second-0"}
    kubectl("delete", "pod", "second-1", "--grace-period=0", "--force")

    kubectl.until("dtj", "second", recovered)
    kubectl.follow("second-1", "did step ")
    job = finish(kubectl, "second")
    assert job["status"]["restarts"]["total"] == 1
    assert groups(kubectl, "second") == {"second-0"}, "the new pod belongs to the gang too"
