"""The chart of this checkout is removed, and the released one is installed on nodes that lack our images."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace

import pytest

from tests.cluster import config, images, install, load
from tests.cluster.kind import Cluster
from tests.e2e.conftest import shell_job, workload_job
from tests.e2e.released import Release
from tests.e2e.test_healing import ENDLESS, finish, uids
from tests.support.kubectl import Kubectl
from tests.support.predicates import condition, phase

pytestmark = pytest.mark.exclusive
PROXY = "dtj-test-registry"  # the unit of systemd on the workers that forwards connections
# The trainer's image under another name, so that its layers need not be loaded again. With a host, as CRI
# writes names: it would not notice that a shorter one is removed, and fail to start containers from it.
KEPT = "localhost/dtj-test/kept:1"
FLAGS = (f"--namespace={install.NAMESPACE}", "--wait", "--timeout=600s")


@pytest.mark.long(60)
@pytest.mark.timeout(1800)  # both images are compressed, pushed and pulled: 1.2 GB
def test_training_survives_an_upgrade_an_uninstall_and_the_installation_of_a_release(
    cluster: Cluster, kubectl: Kubectl, installed: Kubectl, released: Future[Release]
):
    if cluster.engine is None:
        pytest.skip("the nodes of another cluster are not changed")
    release = released.result()
    operator, trainer, _ = (release.files / "images.txt").read_text().splitlines()
    kubectl.apply(workload_job("steady", *ENDLESS))
    kubectl.until("dtj", "steady", phase("Running"))
    pods = uids(kubectl, "steady")

    install.helm("upgrade", install.RELEASE, str(install.CHART), "--reuse-values", "--set=replicas=1", *FLAGS)
    try:
        install.helm("uninstall", install.RELEASE, *FLAGS)
        assert not installed.list("clusterrole", "app.kubernetes.io/instance=dtj")
        assert not installed.list("clusterrolebinding", "app.kubernetes.io/instance=dtj")
        assert installed.get("crd", "distributedtrainingjobs.dtj.dev"), "jobs outlive the chart"
        assert uids(kubectl, "steady") == pods

        with reachable(cluster, release), without_our_images(cluster):
            chart = f"oci://{release.registry}/dtj/charts/dtj-operator"
            install.helm("install", install.RELEASE, chart, "--plain-http", *FLAGS)
            job = workload_job("released", "--steps=10")
            job["spec"]["template"]["spec"]["containers"][0]["image"] = trainer
            kubectl.apply(job)
            kubectl.until("dtj", "released", condition("Complete"), within_s=600)
            system = replace(installed, namespace=install.NAMESPACE)
            assert digests(system, "app.kubernetes.io/name=dtj-operator") == {operator.partition("@")[2]}
            assert digests(kubectl, "dtj.dev/job-name=released") == {trainer.partition("@")[2]}
    finally:
        install.deploy(installed)

    kubectl.apply(shell_job("next", "true"))
    kubectl.until("dtj", "next", condition("Complete"), within_s=240)
    steady = finish(kubectl, "steady")  # it has trained until now
    assert uids(kubectl, "steady") == pods
    assert steady["status"]["restarts"]["total"] == 0


def test_bills_of_materials_of_a_release_name_packages_of_python_and_debian(released: Future[Release]):
    files = released.result().files
    for role, package in {"operator": "kopf", "trainer": "rich"}.items():
        components = json.loads((files / f"{role}.cdx.json").read_text())["components"]
        assert {package, "libc6"} <= {each["name"] for each in components}


@contextlib.contextmanager
def reachable(cluster: Cluster, release: Release) -> Iterator[None]:
    """Forward connections to the registry's address on the workers to this machine, by socat."""
    runtime, port = cluster.runtime, release.port
    with contextlib.ExitStack() as stack:
        for node in cluster.workers:
            gateway = runtime("exec", node, "ip", "-4", "route", "show", "default").split()[2]
            runtime(
                "exec", node, "systemd-run", "--quiet", "--collect", f"--unit={PROXY}",
                "socat", f"TCP-LISTEN:{port},bind=127.0.0.1,fork", f"TCP:{gateway}:{port}",
            )  # fmt: skip
            stack.callback(runtime, "exec", node, "systemctl", "stop", PROXY)
        yield


@contextlib.contextmanager
def without_our_images(cluster: Cluster) -> Iterator[None]:
    """Remove our images from the workers, and put them back at the end.

    The operator's is gone with its layers. The trainer's stays under a name that nothing asks for: a node has
    to pull its layers all the same, since those of the registry are compressed; it need not unpack them.
    """
    runtime, trainer = cluster.runtime, config.IMAGES["trainer"]
    for node in cluster.workers:
        load.ctr(runtime, node, "tag", "--force", trainer, KEPT)
        remove_all_but_kept(cluster, node)
    try:
        yield
    finally:
        for node in cluster.workers:
            remove_all_but_kept(cluster, node)
            load.ctr(runtime, node, "tag", KEPT, trainer)  # with the label that says what it is
            load.ctr(runtime, node, "rm", KEPT)
        load.load(cluster, images.build())


def remove_all_but_kept(cluster: Cluster, node: str) -> None:
    """Remove all names of our images but one from a node, and the layers that no name needs any longer."""
    listed = [line.split()[:3] for line in load.ctr(cluster.runtime, node, "list").splitlines()]
    ours = {digest for name, _, digest in listed if "/dtj" in name or name == KEPT}
    names = [name for name, _, digest in listed if digest in ours and name != KEPT]
    load.ctr(cluster.runtime, node, "rm", "--sync", *names)


def digests(kubectl: Kubectl, selector: str) -> set[str]:
    """Return the digests of the images that the containers of these pods run, as the kubelets report them."""
    pods = kubectl.list("pods", selector)
    assert pods
    reported = [each["imageID"] for pod in pods for each in pod["status"]["containerStatuses"]]
    return {each.rpartition("@")[2] for each in reported}
