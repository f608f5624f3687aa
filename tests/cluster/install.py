"""Installs the whole system in the cluster: our images in its nodes, our chart; ready for jobs.

The demo, end-to-end tests and benchmarks start here, so they see what a user sees after `helm install`.
"""

from dataclasses import replace
from pathlib import Path

from tests.cluster import config, images, kind, load, proc, tools
from tests.cluster.errors import ClusterError
from tests.cluster.kind import Cluster
from tests.support.kubectl import Kubectl

CHART = config.ROOT / "charts" / "dtj-operator"
RELEASE = "dtj"
NAMESPACE = "dtj-system"
SHARED_FOLDER = config.SHARED_FOLDER


def with_operator() -> Kubectl:
    """Create or reuse the cluster and everything in it; return kubectl for its default namespace.

    Idempotent: what exists and is up to date is not changed.
    """
    cluster = kind.create()
    into(cluster)
    return cluster.kubectl


def into(cluster: Cluster, *, spare: bool = False) -> None:
    """Load the images, if wanted into the spare node too, and install the operator; the cluster is ready."""
    load.load(cluster, images.build(), spare=spare)
    deploy(cluster.kubectl)


def deploy(kubectl: Kubectl) -> None:
    """Install or upgrade the chart and wait for the operator's pods."""
    with proc.timed("installing the operator with Helm (about 20 s)"):
        try:
            # The tag does not change when the image does, so the image id is what replaces the pods.
            helm(
                "upgrade", RELEASE, str(CHART), "--install", f"--namespace={NAMESPACE}", "--create-namespace",
                f"--set-string=podAnnotations.dtj\\.dev/image-id={images.image_id('operator')}",
                "--set=progress.pollSeconds=2,progress.writeSeconds=2", "--wait", "--timeout=300s",
            )  # fmt: skip
        except ClusterError as error:
            raise ClusterError(f"{error}\n{symptoms(kubectl)}") from error


def symptoms(kubectl: Kubectl) -> str:
    """Return the state and the last log lines of the operator's pods."""
    namespaced = replace(kubectl, namespace=NAMESPACE)
    pods = namespaced("get", "pods", "-o", "wide", check=False)
    logs = namespaced("logs", "--selector=app.kubernetes.io/name=dtj-operator", "--tail=20", check=False)
    return f"{pods}\n{logs}"


def helm(*words: str) -> str:
    """Run helm on the cluster and return its output."""
    return proc.run(tools.ensure("helm")["helm"], *words, "--kubeconfig", kubeconfig())


def kubeconfig() -> Path:
    """The kubeconfig in use: the one in DTJ_TEST_KUBECONFIG if set, else that of our own cluster."""
    return config.borrowed_kubeconfig() or config.kubeconfig()
