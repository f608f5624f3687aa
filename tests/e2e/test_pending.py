"""A job whose pods cannot start says why: the words of a real kubelet, scheduler and quota."""

from __future__ import annotations

from tests.e2e.conftest import UNTIL_STOPPED, shell_job, workload_job
from tests.support.kubectl import Kubectl
from tests.support.predicates import condition, phase


def test_status_names_an_image_that_cannot_be_pulled(kubectl: Kubectl):
    manifest = workload_job("noimage")
    manifest["spec"]["template"]["spec"]["containers"][0]["image"] = "localhost:1/no/such:image"
    kubectl.apply(manifest)

    job = kubectl.until(
        "dtj", "noimage", condition("PodsReady", "False", "ImagePullFailed", "localhost:1/no/such:image")
    )

    assert job["status"]["phase"] == "Pending"


def test_status_names_the_resource_of_an_unschedulable_pod(kubectl: Kubectl):
    manifest = workload_job("huge")
    manifest["spec"]["template"]["spec"]["containers"][0]["resources"] = {"requests": {"memory": "9Ti"}}
    kubectl.apply(manifest)

    job = kubectl.until("dtj", "huge", condition("PodsReady", "False", "Unschedulable", "memory"))

    assert job["status"]["phase"] == "Pending"


def test_exceeded_quota_is_quoted_and_the_job_starts_once_it_is_removed(kubectl: Kubectl):
    quota = {
        "kind": "ResourceQuota",
        "apiVersion": "v1",
        "metadata": {"name": "small"},
        "spec": {"hard": {"pods": "1"}},
    }
    kubectl.apply(quota)
    # A pod that has ended does not count: then the other one would start, quota or not.
    kubectl.apply(shell_job("squeezed", UNTIL_STOPPED))

    kubectl.until("dtj", "squeezed", condition("PodsReady", "False", "QuotaExceeded", "small"))
    kubectl("delete", "resourcequota", "small")

    assert kubectl.until("dtj", "squeezed", phase("Running"))
