"""A release in a registry, installed on nodes that have none of our images."""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cluster import config, images, install, load
from tests.cluster.kind import Cluster
from tests.e2e.conftest import workload_job
from tests.release.__main__ import Source, release
from tests.support.kubectl import Kubectl
from tests.support.predicates import condition
from tests.support.registry import serving

SOURCE = Source(commit="0123456789abcdef0123456789abcdef01234567", date="2026-01-02T03:04:05Z")
PROXY = "dtj-test-registry"  # the unit of systemd on the workers that forwards connections


@pytest.mark.exclusive
@pytest.mark.timeout(1800)  # both images are compressed, pushed and pulled: 1.2 GB
def test_nodes_without_our_images_run_the_released_ones(
    cluster: Cluster, kubectl: Kubectl, installed: Kubectl, tmp_path: Path
):
    if cluster.engine is None:
        pytest.skip("the nodes of another cluster are not changed")
    built = images.build()
    named = dict(zip(config.IMAGES, built.values(), strict=True))
    files = tmp_path / "released"
    flags = (f"--namespace={install.NAMESPACE}", "--wait", "--timeout=600s")
    with tempfile.TemporaryDirectory() as layers, registry_of_nodes(cluster, Path(layers)) as address:
        release(f"{address}/dtj", SOURCE, named, files, None, {})
        operator, trainer, _ = (files / "images.txt").read_text().splitlines()
        try:
            install.helm("uninstall", install.RELEASE, *flags)
            remove_images(cluster)
            chart = f"oci://{address}/dtj/charts/dtj-operator"
            install.helm("install", install.RELEASE, chart, "--plain-http", *flags)
            job = workload_job("released", "--steps=10")
            job["spec"]["template"]["spec"]["containers"][0]["image"] = trainer
            kubectl.apply(job)
            kubectl.until("dtj", "released", condition("Complete"), within_s=600)

            system = replace(installed, namespace=install.NAMESPACE)
            assert digests(system, "app.kubernetes.io/name=dtj-operator") == {operator.partition("@")[2]}
            assert digests(kubectl, "dtj.dev/job-name=released") == {trainer.partition("@")[2]}
        finally:
            remove_images(cluster)  # the released ones
            load.load(cluster, built)
            install.deploy(installed)

    for role, package in {"operator": "kopf", "trainer": "rich"}.items():
        components = json.loads((files / f"{role}.cdx.json").read_text())["components"]
        assert {package, "libc6"} <= {each["name"] for each in components}


@contextlib.contextmanager
def registry_of_nodes(cluster: Cluster, folder: Path) -> Iterator[str]:
    """Run a registry; yield its host and port, the same on this machine and on the workers.

    It has a loopback address, because containerd uses TLS for any other. On the workers, socat forwards the
    connections to this machine.
    """
    runtime = cluster.runtime
    with serving(folder, host="") as port, contextlib.ExitStack() as stack:
        for node in cluster.workers:
            gateway = runtime("exec", node, "ip", "-4", "route", "show", "default").split()[2]
            runtime(
                "exec", node, "systemd-run", "--quiet", "--collect", f"--unit={PROXY}",
                "socat", f"TCP-LISTEN:{port},bind=127.0.0.1,fork", f"TCP:{gateway}:{port}",
            )  # fmt: skip
            stack.callback(runtime, "exec", node, "systemctl", "stop", PROXY)
        yield f"127.0.0.1:{port}"


def remove_images(cluster: Cluster) -> None:
    """Remove all images of ours from the workers, with their layers."""
    for node in cluster.workers:
        listed = [line.split()[:3] for line in load.ctr(cluster.runtime, node, "list").splitlines()]
        ours = {digest for name, _, digest in listed if "/dtj" in name}
        names = [name for name, _, digest in listed if digest in ours]
        load.ctr(cluster.runtime, node, "rm", "--sync", *names)


def digests(kubectl: Kubectl, selector: str) -> set[str]:
    """Return the digests of the images that the containers of these pods run, as the kubelets report them."""
    pods = kubectl.list("pods", selector)
    assert pods
    reported = [each["imageID"] for pod in pods for each in pod["status"]["containerStatuses"]]
    return {each.rpartition("@")[2] for each in reported}
