"""Installation, upgrade and uninstallation of the chart against a real API server."""

from __future__ import annotations

import json
from pathlib import Path

from tests.integration.chart.conftest import CHART, Helm
from tests.integration.controlplane import ControlPlane
from tests.support.kubectl import Kubectl

CRD = "distributedtrainingjobs.dtj.dev"


def test_uninstallation_keeps_the_crd(helm: Helm, plane: ControlPlane, kubectl: Kubectl):
    namespace = f"--namespace={kubectl.namespace}"
    flags = (namespace, f"--kubeconfig={plane.kubectl.kubeconfig}")
    selector = "app.kubernetes.io/instance=release-test"
    kubectl.apply(
        {
            "apiVersion": "dtj.dev/v1alpha1",
            "kind": "DistributedTrainingJob",
            "metadata": {"name": "before"},
            "spec": {"template": {"spec": {"containers": [{"name": "trainer"}]}}},
        }
    )

    # The tests applied the CRD with kubectl, so helm has to take ownership; a new cluster does not need this.
    helm("install", "release-test", str(CHART), *flags, "--take-ownership")
    assert kubectl.get("deployment", "release-test-operator")
    assert len(kubectl.list("clusterrole", selector)) == 4

    helm("upgrade", "release-test", str(CHART), *flags, "--reuse-values", given={"replicas": 1})
    deployment = kubectl.get("deployment", "release-test-operator")
    assert deployment is not None
    assert deployment["spec"]["replicas"] == 1
    assert not kubectl.list("poddisruptionbudget", selector)

    helm("uninstall", "release-test", *flags)
    for kind in (
        "deployment",
        "service",
        "clusterrole",
        "clusterrolebinding",
        "role",
        "rolebinding",
        "serviceaccount",
        "validatingadmissionpolicy",
        "validatingadmissionpolicybinding",
    ):
        assert not kubectl.list(kind, selector), kind
    assert kubectl.get("crd", CRD)
    assert kubectl.get("dtj", "before")

    helm("install", "release-test", str(CHART), *flags)
    helm("uninstall", "release-test", *flags)

    assert "invalid ownership metadata" in helm("install", "another", str(CHART), *flags, fails=True)
    helm("install", "another", str(CHART), *flags, "--take-ownership")
    helm("uninstall", "another", *flags)
    assert kubectl.get("dtj", "before")


def test_rendered_manifests_install_with_apply_k(
    helm: Helm, plane: ControlPlane, kubectl: Kubectl, tmp_path: Path
):
    values = {"fullnameOverride": "plain", "crds": {"install": False}, "fence": {"enabled": False}}
    (tmp_path / "operator.yaml").write_text(helm.template(values, kubectl.namespace or ""))
    image = {"name": "ghcr.io/dtj-dev/operator", "newName": "registry.example.com/dtj/operator"}
    (tmp_path / "kustomization.yaml").write_text(
        json.dumps({"resources": ["operator.yaml"], "images": [image]})
    )

    for _ in range(2):  # an upgrade is the same command
        plane.kubectl("apply", "-k", str(tmp_path))

    deployment = kubectl.get("deployment", "plain")
    assert deployment is not None
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert container["image"].startswith("registry.example.com/dtj/operator:")
    plane.kubectl("delete", "-k", str(tmp_path))
    assert not kubectl.get("deployment", "plain")
