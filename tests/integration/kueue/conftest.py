"""A control plane with the kinds of Kueue that the operator uses, and the chart's rights for them."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator, Iterator
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
from tests.integration.kueue import standin
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

    async def enqueue(self, name: str = "job", labels: Json | None = None, **spec: Any) -> Json:
        """Create a job of two replicas that waits in a queue."""
        body = job(name, **spec)
        body["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "gpus", **(labels or {})}
        return await self.api.create(self.jobs, body)


@pytest.fixture
async def cluster(kueue_plane: ControlPlane) -> AsyncIterator[QueuedCluster]:
    """Return a namespace with an operator that watches it; the operator lacks no right."""
    name = f"kueue-{uuid.uuid4().hex[:6]}"
    kueue_plane.kubectl("create", "namespace", name)
    async with rest.connect(kueue_plane) as api, watching(api, name) as witness:
        async with process.kept(kueue_plane, watch=name) as operator:
            yield QueuedCluster(api, name)
            operator.check()
        assert witness.violations() == []
    assert not kueue_plane.forbidden()


@pytest.fixture
async def kubelet(cluster: QueuedCluster) -> AsyncIterator[Kubelet]:
    """Return a kubelet for the test's namespace."""
    async with kubelets.playing(cluster.api, cluster.namespace) as kubelet:
        yield kubelet
