"""Upgrade and uninstall of the chart: what stays, what is removed, and training is not affected."""

from __future__ import annotations

import pytest

from tests.cluster import install
from tests.e2e.conftest import workload_job
from tests.support.kubectl import Kubectl
from tests.support.predicates import condition, phase


@pytest.mark.exclusive
def test_training_survives_an_upgrade_and_uninstall_of_the_operator(kubectl: Kubectl, installed: Kubectl):
    kubectl.apply(workload_job("steady", "--steps=400", "--step-s=0.1"))
    kubectl.until("dtj", "steady", phase("Running"))
    pods = {pod["metadata"]["uid"] for pod in kubectl.list("pods", "dtj.dev/job-name=steady")}

    install.helm(
        "upgrade",
        install.RELEASE,
        str(install.CHART),
        f"--namespace={install.NAMESPACE}",
        "--reuse-values",
        "--set=replicas=1",
        "--wait",
    )
    install.helm("uninstall", install.RELEASE, f"--namespace={install.NAMESPACE}", "--wait")

    try:
        assert not installed.list("clusterrole", "app.kubernetes.io/instance=dtj")
        assert not installed.list("clusterrolebinding", "app.kubernetes.io/instance=dtj")
        assert installed.get("crd", "distributedtrainingjobs.dtj.dev"), "jobs outlive the chart"
        assert {pod["metadata"]["uid"] for pod in kubectl.list("pods", "dtj.dev/job-name=steady")} == pods
    finally:
        install.deploy(installed)

    job = kubectl.until("dtj", "steady", condition("Complete"), within_s=240)
    assert job["status"]["restarts"]["total"] == 0
