"""A real cluster with our images and our chart; each test gets its own namespace.

The cluster is that of `make cluster`: created once, reused, kept running. Namespaces enforce the `restricted`
pod security standard, so a pod of ours that needs a privilege is rejected and the test fails.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.cluster import config, install, kind, proc
from tests.cluster.errors import ClusterError
from tests.cluster.kind import Cluster
from tests.e2e.released import Release, begun, built_again, can_build_again
from tests.support.kubectl import Json, Kubectl

ROOT = Path(__file__).parents[2]
TRAINER = config.IMAGES["trainer"]
WORKLOAD = (Path(__file__).parent / "workload.py").read_text()
# For `shell_job`: process 1 of a container gets SIGTERM only if it has a handler.
UNTIL_STOPPED = "trap 'exit 143' TERM; sleep infinity & wait"


CLUSTER = pytest.StashKey[Cluster | ClusterError]()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Create the cluster here: it may take half an hour, and a test's time limit includes its fixtures."""
    here = Path(__file__).parent  # tests of other folders have a fixture of the same name
    needed = any(
        here in item.path.parents and "cluster" in getattr(item, "fixturenames", ()) for item in session.items
    )
    if needed and not session.config.option.collectonly:
        session.config.stash[CLUSTER] = made()


def made() -> Cluster | ClusterError:
    """Return the cluster with our images and our chart, or the error if that failed.

    The parallel pytest workers share the cluster: the first one installs, the others wait for it.
    """
    run_id = os.environ.get("PYTEST_XDIST_TESTRUNUID", "")
    installed_by = config.kubeconfig().with_name("installed-by")
    try:
        with proc.lock(config.cache() / "locks" / f"{config.cluster_name()}-e2e"):
            if run_id and installed_by.exists() and installed_by.read_text() == run_id:
                return kind.of_checkout()  # not examined: a test of another worker may have stopped a node
            cluster = kind.create()
            install.into(cluster, spare=True)
            installed_by.write_text(run_id)
    except ClusterError as error:
        return error
    return cluster


@pytest.fixture(scope="session")
def cluster(pytestconfig: pytest.Config) -> Cluster:
    """Return the cluster. Its health is checked once per run: a test must never find it recreated."""
    found = pytestconfig.stash[CLUSTER]
    if isinstance(found, ClusterError):
        raise found
    return found


@pytest.fixture(scope="session")
def installed(cluster: Cluster) -> Kubectl:
    """Return kubectl for the cluster, in which the chart of this checkout is installed and ready."""
    return cluster.kubectl


@pytest.fixture(scope="session")
def background() -> Iterator[Executor]:
    """Return a thread for what takes a minute and needs no node: it works while tests wait for nodes."""
    with ThreadPoolExecutor(1) as pool:
        yield pool


@pytest.fixture(scope="session", autouse=True)
def released(
    request: pytest.FixtureRequest, background: Executor, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Future[Release] | None]:
    """Return the release of our images, begun before the first test; None if no test of the run needs it."""
    if not any(item.path.name == "test_release.py" for item in request.session.items):
        yield None
        return
    with begun(background, tmp_path_factory.mktemp("release") / "files") as future:
        yield future


@pytest.fixture(scope="session", autouse=True)
def rebuilt(
    request: pytest.FixtureRequest, background: Executor, released: Future[Release] | None
) -> Future[str] | None:
    """Return the id of another build of the operator's image, begun after the release; None if not needed."""
    needed = any(item.path.name == "test_images.py" for item in request.session.items)
    return background.submit(built_again) if needed and can_build_again() else None


@pytest.fixture
def kubectl(installed: Kubectl, request: pytest.FixtureRequest) -> Iterator[Kubectl]:
    """Return kubectl for a new namespace, which is deleted after the test."""
    words = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower().removeprefix("test_"))
    name = f"e2e-{words[:50].strip('-')}"
    installed("delete", "namespace", name, "--ignore-not-found", "--wait=true")
    installed.apply(
        {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {"name": name, "labels": {"pod-security.kubernetes.io/enforce": "restricted"}},
        }
    )
    scoped = replace(installed, namespace=name)
    scoped.apply(config_map("workload", {"workload.py": WORKLOAD}))
    yield scoped
    installed("delete", "namespace", name, "--wait=false")


@pytest.fixture
def runs(kubectl: Kubectl, shared_volume: str) -> Json:
    """Return a job's `spec.checkpoint`, on a volume that every node can write to."""
    claim = {
        "accessModes": ["ReadWriteMany"],
        "storageClassName": "",
        "volumeName": shared_volume,
        "resources": {"requests": {"storage": "1Gi"}},
    }
    kubectl.apply(
        {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "runs"}, "spec": claim}
    )
    return {"volume": {"persistentVolumeClaim": {"claimName": "runs"}}}


@pytest.fixture
def shared_volume(kubectl: Kubectl, request: pytest.FixtureRequest) -> Iterator[str]:
    """Return the name of a volume that every node can write to, reserved for a claim, `runs` by default."""
    name = f"{kubectl.namespace}-runs"
    everywhere = replace(kubectl, namespace=None)
    everywhere("delete", "persistentvolume", name, "--ignore-not-found")  # left by an interrupted run
    volume = {
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteMany", "ReadWriteOnce"],
        "storageClassName": "",
        "persistentVolumeReclaimPolicy": "Retain",
        "claimRef": {"namespace": kubectl.namespace, "name": getattr(request, "param", "runs")},
        "hostPath": {"path": install.SHARED_FOLDER, "type": "Directory"},
    }
    kubectl.apply(
        {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}, "spec": volume}
    )
    yield name
    everywhere("delete", "persistentvolume", name, "--wait=false")


@contextlib.contextmanager
def no_other_placement() -> Iterator[None]:
    """While one test closes a node to new pods, no other places pods that must be on both nodes."""
    with proc.lock(config.cache() / "locks" / f"{config.cluster_name()}-placement"):
        yield


def config_map(name: str, data: dict[str, str]) -> Json:
    """Return a ConfigMap."""
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


def shell_job(name: str, script: str, **spec: Any) -> Json:
    """Return a job of two replicas that runs a line of shell, without an agent.

    For tests of what the operator does with pods, whatever these do: a pod that imports torch takes 2.2 s of
    processor time.
    """
    job = workload_job(name, **spec)
    (container,) = job["spec"]["template"]["spec"]["containers"]
    del container["args"]
    container |= {
        "command": ["sh", "-c", script],
        "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}},
    }
    return job


def workload_job(name: str, *args: str, **spec: Any) -> Json:
    """Return a job of two replicas that runs tests/e2e/workload.py with these arguments."""
    container = {
        "name": "trainer",
        "image": TRAINER,
        "args": ["run", "/app/workload.py", *args],
        "resources": {"requests": {"cpu": "100m", "memory": "300Mi"}},
        "volumeMounts": [{"name": "app", "mountPath": "/app"}],
    }
    pod = {"containers": [container], "volumes": [{"name": "app", "configMap": {"name": "workload"}}]}
    return {
        "apiVersion": "dtj.dev/v1alpha1",
        "kind": "DistributedTrainingJob",
        "metadata": {"name": name},
        "spec": {"replicas": 2, "template": {"spec": pod}, **spec},
    }
