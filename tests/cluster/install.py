"""The whole system in the cluster: our images in its nodes, our chart installed, ready to take jobs.

Demo, end-to-end tests and benchmarks begin here, so that they see what a user sees after `helm install`.
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
    """Make or reuse the cluster and everything in it; return kubectl for its default namespace.

    Idempotent: what is there and up to date is left alone.
    """
    cluster = kind.create()
    into(cluster)
    return cluster.kubectl


def into(cluster: Cluster) -> None:
    """Bring the images and the operator into a cluster that works."""
    load.load(cluster, images.build())
    deploy(cluster.kubectl)


def deploy(kubectl: Kubectl) -> None:
    """Install the chart, or bring it up to date, and wait for the operator's pods."""
    with proc.timed("installing the operator with Helm (about 20 s)"):
        try:
            # The tag stays the same while the image changes: its id rolls the pods when there is a new one.
            helm(
                "upgrade", RELEASE, str(CHART), "--install", f"--namespace={NAMESPACE}", "--create-namespace",
                f"--set-string=podAnnotations.dtj\\.dev/image-id={images.image_id('operator')}",
                "--set=progress.pollSeconds=2,progress.writeSeconds=2", "--wait", "--timeout=300s",
            )  # fmt: skip
        except ClusterError as error:
            raise ClusterError(f"{error}\n{symptoms(kubectl)}") from error


def symptoms(kubectl: Kubectl) -> str:
    """Return what the operator's pods say for themselves."""
    namespaced = replace(kubectl, namespace=NAMESPACE)
    pods = namespaced("get", "pods", "-o", "wide", check=False)
    logs = namespaced("logs", "--selector=app.kubernetes.io/name=dtj-operator", "--tail=20", check=False)
    return f"{pods}\n{logs}"


def helm(*words: str) -> str:
    """Run our helm on the cluster and return what it printed."""
    return proc.run(tools.ensure("helm")["helm"], *words, "--kubeconfig", kubeconfig())


def kubeconfig() -> Path:
    """The cluster that we work on: a borrowed one where the user named it, else our own."""
    return config.borrowed_kubeconfig() or config.kubeconfig()
