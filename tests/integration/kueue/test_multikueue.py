"""A real Kueue, where DTJ_TEST_KUEUE names one, runs jobs in another cluster, which has a Kueue too."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator, Iterator

import pytest

from tests.integration import kubelet as kubelets
from tests.integration.chart.conftest import Helm
from tests.integration.controlplane import ControlPlane
from tests.integration.kubelet import Kubelet
from tests.integration.kueue import manager
from tests.integration.kueue.conftest import QueuedCluster, operated, with_kueue
from tests.integration.kueue.standin import GROUP, VERSION
from tests.support.predicates import condition as has
from tests.support.predicates import condition as says
from tests.support.predicates import phase

pytestmark = [
    pytest.mark.xdist_group("kueue-manager"),
    pytest.mark.skipif(manager.program() is None, reason=manager.MISSING),
]
API = f"{GROUP}/{VERSION}"
ELSEWHERE = "kueue.x-k8s.io/multikueue"


@pytest.fixture(scope="module")
def worker_plane(helm: Helm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """Return the control plane of the cluster in which the jobs run."""
    with with_kueue(helm, tmp_path_factory.mktemp("worker")) as plane:
        yield plane


@pytest.fixture
async def worker(worker_plane: ControlPlane) -> AsyncIterator[QueuedCluster]:
    """Return a namespace of the other cluster, with an operator and a quota for two pods."""
    async with operated(worker_plane) as found:
        await found.open(2)
        yield found


@pytest.fixture
async def cluster(
    real_plane: ControlPlane, worker_plane: ControlPlane, worker: QueuedCluster
) -> AsyncIterator[QueuedCluster]:
    """Return the namespace of the same name in the cluster that has the queue."""
    async with operated(real_plane, worker.namespace, copies=True) as found:
        await connect(found, worker_plane)
        await found.open(2, check=found.namespace)
        yield found


@pytest.fixture
async def kubelet(worker: QueuedCluster) -> AsyncIterator[Kubelet]:
    """Return a kubelet of the other cluster."""
    async with kubelets.playing(worker.api, worker.namespace) as kubelet:
        yield kubelet


async def connect(cluster: QueuedCluster, to: ControlPlane) -> None:
    """Let Kueue run jobs in another cluster, by an AdmissionCheck with the name of the namespace."""
    name = cluster.namespace
    config = json.loads(to.kubeconfig("kueue").read_text())
    known = config["clusters"][0]["cluster"]
    del known["certificate-authority"]
    known["certificate-authority-data"] = base64.b64encode(to.ca.read_bytes()).decode()
    secret = {
        "metadata": {"name": name},
        "data": {"kubeconfig": base64.b64encode(json.dumps(config).encode()).decode()},
    }
    await cluster.api.create(f"/api/v1/namespaces/{manager.NAMESPACE}/secrets", secret)
    source = {"clusterSource": {"kubeConfig": {"locationType": "Secret", "location": name}}}
    reference = {"apiGroup": GROUP, "kind": "MultiKueueConfig", "name": name}
    check = {"controllerName": "kueue.x-k8s.io/multikueue", "parameters": reference}
    for kind, plural, spec in (
        ("MultiKueueCluster", "multikueueclusters", source),
        ("MultiKueueConfig", "multikueueconfigs", {"clusters": [name]}),
        ("AdmissionCheck", "admissionchecks", check),
    ):
        body = {"apiVersion": API, "kind": kind, "metadata": {"name": name}, "spec": spec}
        await cluster.api.create(f"/apis/{API}/{plural}", body)
    await cluster.api.until(f"/apis/{API}/admissionchecks/{name}", says("Active"))


async def test_job_is_preempted_and_ends_in_the_other_cluster(
    cluster: QueuedCluster, worker: QueuedCluster, kubelet: Kubelet
):
    await cluster.enqueue_counted("low", managedBy=ELSEWHERE)
    await kubelet.until_running("low-0", "low-1")
    running = await cluster.until(phase("Running"), "low")
    assert running["status"]["ready"] == "2/2"
    await cluster.queue.of("low", says("PodsReady", "True", "Started"))
    ours = {each["metadata"]["name"] for each in await cluster.api.items(cluster.queue.folder)}
    theirs = {each["metadata"]["name"] for each in await worker.api.items(worker.queue.folder)}
    assert ours == theirs, "the operator there has used the Workload that Kueue has created"

    await cluster.enqueue_counted(
        "high", {"kueue.x-k8s.io/priority-class": cluster.namespace}, managedBy=ELSEWHERE
    )
    await kubelet.until_running("high-0", "high-1")
    await cluster.until(has("Suspended", "True"), "low")
    for name in ("high-0", "high-1"):
        await kubelet.finish(name)
    await cluster.until(phase("Succeeded"), "high")

    await kubelet.until_running("low-0", "low-1")
    for name in ("low-0", "low-1"):
        await kubelet.finish(name)
    done = await cluster.until(phase("Succeeded"), "low")
    assert done["status"]["restarts"]["counted"] == 0
    await cluster.queue.of("low", says("Finished", "True", "Succeeded"))
    assert await cluster.api.items(cluster.pods) == []
    await worker.api.until_gone(f"{worker.jobs}/low")


async def test_copy_goes_with_its_job(cluster: QueuedCluster, worker: QueuedCluster, kubelet: Kubelet):
    await cluster.enqueue_counted("job", managedBy=ELSEWHERE)
    await kubelet.until_running("job-0", "job-1")
    await cluster.change(suspend=True)
    await kubelet.until(lambda pods: not pods)
    assert (await cluster.until(phase("Suspended")))["status"]["phase"] == "Suspended"
    await worker.api.until_gone(f"{worker.jobs}/job")
    await cluster.change(suspend=False)
    await kubelet.until_running("job-0", "job-1")
