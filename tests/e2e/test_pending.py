"""A job that cannot start reports why in its status, and starts once the cause is removed."""

from __future__ import annotations

from collections.abc import Callable

from tests.e2e.conftest import TRAINER, shell_job, workload_job
from tests.support.kubectl import Json, Kubectl
from tests.support.predicates import condition, phase


def not_ready(reason: str, *words: str) -> Callable[[Json], bool]:
    """Return a predicate: PodsReady is False for this reason, and its message contains all these words."""

    def holds(seen: Json) -> bool:
        return any(
            each["type"] == "PodsReady" and each["status"] == "False" and each["reason"] == reason
            and all(word in each["message"] for word in words)
            for each in seen.get("status", {}).get("conditions", ())
        )  # fmt: skip

    return holds


def test_status_names_an_image_that_cannot_be_pulled(kubectl: Kubectl):
    manifest = workload_job("noimage")
    manifest["spec"]["template"]["spec"]["containers"][0]["image"] = "localhost:1/no/such:image"
    kubectl.apply(manifest)

    job = kubectl.until("dtj", "noimage", not_ready("ImagePullFailed", "localhost:1/no/such:image"))

    assert job["status"]["phase"] == "Pending"


def test_status_names_the_resource_of_an_unschedulable_pod(kubectl: Kubectl):
    manifest = workload_job("huge")
    manifest["spec"]["template"]["spec"]["containers"][0]["resources"] = {"requests": {"memory": "9Ti"}}
    kubectl.apply(manifest)

    job = kubectl.until("dtj", "huge", not_ready("Unschedulable", "memory"))

    assert job["status"]["phase"] == "Pending"


def test_exceeded_quota_is_quoted_and_the_job_starts_once_it_is_removed(kubectl: Kubectl):
    quota = {
        "kind": "ResourceQuota",
        "apiVersion": "v1",
        "metadata": {"name": "small"},
        "spec": {"hard": {"pods": "1"}},
    }
    kubectl.apply(quota)
    kubectl.apply(shell_job("squeezed", "true"))

    kubectl.until("dtj", "squeezed", not_ready("QuotaExceeded", "small"))
    kubectl("delete", "resourcequota", "small")

    assert kubectl.until("dtj", "squeezed", condition("Complete"), within_s=240)


def test_rejection_by_the_pod_security_standard_is_quoted(kubectl: Kubectl):
    manifest = workload_job("rude")
    manifest["spec"]["template"]["spec"]["hostNetwork"] = True
    kubectl.apply(manifest)

    job = kubectl.until("dtj", "rude", not_ready("PodRejected", "hostNetwork"))

    assert job["status"]["phase"] == "Pending"


def test_service_of_the_same_name_that_is_not_ours_is_not_changed(kubectl: Kubectl):
    ports = [{"port": 80}]
    foreign = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "taken"}, "spec": {"ports": ports}}
    kubectl.apply(foreign)
    kubectl.apply(shell_job("taken", "true"))

    kubectl.until("dtj", "taken", not_ready("NameConflict", "Service", "taken"))
    assert kubectl.get("service", "taken")["spec"]["ports"][0]["port"] == 80  # type: ignore[index]
    kubectl("delete", "service", "taken")

    assert kubectl.until("dtj", "taken", condition("Complete"), within_s=240)
    assert phase("Succeeded")(kubectl.get("dtj", "taken") or {})
    assert TRAINER in str(kubectl.list("pods", "dtj.dev/job-name=taken"))
