"""A control plane with the kinds of Kueue that the operator uses, and the chart's rights for them."""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.witness import watching
from tests.integration import api as rest
from tests.integration import controlplane
from tests.integration import kubelet as kubelets
from tests.integration.api import Api
from tests.integration.chart.conftest import Helm, helm
from tests.integration.controlplane import ControlPlane
from tests.integration.kubelet import Kubelet
from tests.integration.kueue import manager, standin
from tests.integration.kueue.standin import Queue
from tests.integration.operator import process
from tests.integration.operator.conftest import Cluster, grant, job

__all__ = ["helm"]
Json = dict[str, Any]


@pytest.fixture(scope="session")
def kueue_plane(helm: Helm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """Return a control plane with our CRD, Kueue's, and the chart's roles."""
    with controlplane.running(tmp_path_factory.mktemp("kueue")) as plane:
        controlplane.install_crd(plane)
        manifests = plane.folder / "kueue.json"
        manifests.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": standin.crds()}))
        controlplane.install(plane, manifests, *(each["metadata"]["name"] for each in standin.crds()))
        grant(helm, plane, kueue={"enabled": True})
        yield plane


class QueuedCluster(Cluster):
    """A namespace, and the queue of its jobs."""

    def __init__(self, api: Api, namespace: str) -> None:
        super().__init__(api, namespace)
        self.queue = Queue(api, namespace)

    async def enqueue(
        self, name: str = "job", labels: Json | None = None, annotations: Json | None = None, **spec: Any
    ) -> Json:
        """Create a job of two replicas that waits in a queue."""
        body = job(name, **spec)
        body["metadata"]["annotations"] = annotations or {}
        body["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "gpus", **(labels or {})}
        return await self.api.create(self.jobs, body)

    async def open(
        self, cpus: int, flavor: Json | None = None, *, check: str = "", without: str = ""
    ) -> None:
        """Create the LocalQueue `gpus` of a real Kueue: a quota of CPUs in one flavor, one priority.

        check    name of an AdmissionCheck
        without  a kind that is not created
        """
        own = self.namespace
        quota = {"name": own, "resources": [{"name": "cpu", "nominalQuota": cpus}]}
        groups = [{"coveredResources": ["cpu"], "flavors": [quota]}]
        cluster_queue = {
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": own}},
            "preemption": {"withinClusterQueue": "LowerPriority"},
            "resourceGroups": groups,
            **({"admissionChecksStrategy": {"admissionChecks": [{"name": check}]}} if check else {}),
        }
        api = f"/apis/{standin.GROUP}/{standin.VERSION}"
        for folder, kind, name, fields in (
            (standin.FLAVORS, "ResourceFlavor", own, {"spec": flavor or {}}),
            (f"{api}/clusterqueues", "ClusterQueue", own, {"spec": cluster_queue}),
            (standin.CLASSES, "WorkloadPriorityClass", own, {"value": 1000}),
            (f"{api}/namespaces/{own}/localqueues", "LocalQueue", "gpus", {"spec": {"clusterQueue": own}}),
        ):
            head = {
                "apiVersion": f"{standin.GROUP}/{standin.VERSION}",
                "kind": kind,
                "metadata": {"name": name},
            }
            if kind != without:
                await self.api.create(folder, head | fields)

    async def open_shared(self, cpus: int, *names: str) -> None:
        """Create LocalQueues of a real Kueue that have no quota of their own, but may borrow these CPUs."""
        own, api = self.namespace, f"/apis/{standin.GROUP}/{standin.VERSION}"
        head = {"apiVersion": f"{standin.GROUP}/{standin.VERSION}"}
        flavor = {**head, "kind": "ResourceFlavor", "metadata": {"name": own}, "spec": {}}
        await self.api.create(standin.FLAVORS, flavor)
        for name, quota in (("lender", cpus), *((name, 0) for name in names)):
            resources = [{"name": "cpu", "nominalQuota": quota}]
            spec = {
                "cohortName": own,
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": own}},
                "preemption": {"reclaimWithinCohort": "Any"},
                "resourceGroups": [
                    {"coveredResources": ["cpu"], "flavors": [{"name": own, "resources": resources}]}
                ],
            }
            full = f"{own}-{name}"
            body = {**head, "kind": "ClusterQueue", "metadata": {"name": full}, "spec": spec}
            await self.api.create(f"{api}/clusterqueues", body)
            local = {**head, "kind": "LocalQueue", "metadata": {"name": name}, "spec": {"clusterQueue": full}}
            await self.api.create(f"{api}/namespaces/{own}/localqueues", local)

    async def enqueue_counted(self, name: str, labels: Json | None = None, **spec: Any) -> Json:
        """Create a job of two replicas that request one CPU each."""
        container = {"name": "trainer", "image": "trainer:1", "resources": {"requests": {"cpu": "1"}}}
        template = {"spec": {"containers": [container], "terminationGracePeriodSeconds": 1}}
        return await self.enqueue(name, labels, **{"template": template, **spec})


@contextlib.asynccontextmanager
async def operated(
    plane: ControlPlane, name: str = "", *, copies: bool = False
) -> AsyncIterator[QueuedCluster]:
    """Run an operator that watches a new namespace; it lacks no right.

    copies  the statuses are those of jobs in another cluster, of which each begins with attempt 0 again
    """
    name = name or f"kueue-{uuid.uuid4().hex[:6]}"
    plane.kubectl("create", "namespace", name)
    async with rest.connect(plane) as api, watching(api, name) as witness:
        async with process.kept(plane, watch=name):
            yield QueuedCluster(api, name)
        assert copies or witness.violations() == []
    assert not plane.forbidden()


@contextlib.contextmanager
def with_kueue(helm: Helm, folder: Path) -> Iterator[ControlPlane]:
    """Run a control plane with our CRD, the chart's roles and a real Kueue."""
    found = manager.program()
    assert found is not None
    with controlplane.running(folder) as plane:
        controlplane.install_crd(plane)
        with manager.running(plane, found):
            grant(helm, plane, kueue={"enabled": True})
            yield plane


@pytest.fixture(scope="session")
def real_plane(helm: Helm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """Return a control plane with our CRD, the chart's roles and a running Kueue."""
    with with_kueue(helm, tmp_path_factory.mktemp("real-kueue")) as plane:
        yield plane


@pytest.fixture
async def cluster(kueue_plane: ControlPlane) -> AsyncIterator[QueuedCluster]:
    """Return a namespace with an operator, and the stand-in for Kueue."""
    async with operated(kueue_plane) as cluster:
        yield cluster


@pytest.fixture
async def kubelet(cluster: QueuedCluster) -> AsyncIterator[Kubelet]:
    """Return a kubelet for the test's namespace."""
    async with kubelets.playing(cluster.api, cluster.namespace) as kubelet:
        yield kubelet
