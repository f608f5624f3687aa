"""A control plane with PodGroups and a scheduler, and nodes without kubelets."""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.witness import watching
from tests.cluster import gang_releases
from tests.integration import api as rest
from tests.integration import controlplane
from tests.integration import kubelet as kubelets
from tests.integration.api import Api
from tests.integration.chart.conftest import Helm, helm
from tests.integration.controlplane import ControlPlane
from tests.integration.kubelet import Kubelet
from tests.integration.operator import process
from tests.integration.operator.conftest import Cluster, grant
from tests.integration.operator.process import Kept

__all__ = ["helm"]
Json = dict[str, Any]
PODS_THAT_FIT = 4
GANG_API = gang_releases.chosen().api_version
POD_GROUPS = f"/apis/{GANG_API}/namespaces/{{}}/podgroups"


@pytest.fixture(scope="session")
def gang_plane(helm: Helm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """Return a control plane with our CRD and the chart's roles."""
    with controlplane.placing_gangs(tmp_path_factory.mktemp("gangs"), more_gates=True) as plane:
        yield equipped(helm, plane)


@pytest.fixture
def plane_that_ignores_gangs(helm: Helm, tmp_path: Path) -> Iterator[ControlPlane]:
    """Return one that serves PodGroups, and whose scheduler does not know them."""
    with controlplane.placing_gangs(tmp_path, ignored=True) as plane:
        yield equipped(helm, plane)


@pytest.fixture
def plane_that_releases_no_groups(helm: Helm, tmp_path: Path) -> Iterator[ControlPlane]:
    """Return one whose controller manager does not know PodGroups: deleted ones keep their finalizer."""
    with controlplane.placing_gangs(tmp_path, released=False) as plane:
        yield equipped(helm, plane)


def equipped(helm: Helm, plane: ControlPlane) -> ControlPlane:
    """Install our CRD and the chart's roles."""
    controlplane.install_crd(plane)
    grant(helm, plane)
    return plane


@contextlib.contextmanager
def node(plane: ControlPlane, name: str, *, fit: int = PODS_THAT_FIT, **labels: str) -> Iterator[None]:
    """Add a node with these labels on which `fit` pods fit; remove it at the end."""
    room = {"cpu": str(fit), "memory": "8Gi", "pods": "110"}
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "ready"}
    plane.kubectl(
        "create",
        "-f",
        "-",
        given=json.dumps({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}}),
    )
    plane.kubectl.set_status("node", name, capacity=room, allocatable=room, conditions=[ready])
    plane.kubectl("taint", "node", name, "node.kubernetes.io/not-ready-")
    try:
        yield
    finally:
        plane.kubectl("delete", "node", name)


class GangCluster(Cluster):
    """A namespace with a node and an operator of its own."""

    def __init__(self, api: Api, namespace: str, operator: Kept) -> None:
        super().__init__(api, namespace)
        self.operator = operator

    async def submit(self, name: str = "job", *, pod_spec: Json | None = None, **spec: Any) -> Json:
        """Create a job of three replicas, of which each needs a quarter of the node.

        pod_spec  further fields of its pods
        """
        container = {"name": "trainer", "image": "trainer:1", "resources": {"requests": {"cpu": "1"}}}
        pod = {
            "containers": [container],
            "terminationGracePeriodSeconds": 1,
            "nodeSelector": {"test": self.namespace},
            **(pod_spec or {}),
        }
        return await super().submit(name, **{"replicas": 3, "template": {"spec": pod}, **spec})

    async def pod_groups(self) -> dict[str, Json]:
        """Return the PodGroups by name."""
        listed = await self.api.get(POD_GROUPS.format(self.namespace))
        return {each["metadata"]["name"]: each for each in listed["items"]}


@contextlib.asynccontextmanager
async def operated(plane: ControlPlane) -> AsyncIterator[GangCluster]:
    """Add a namespace with a node of its own, and an operator that watches it."""
    name = f"gang-{uuid.uuid4().hex[:6]}"
    plane.kubectl("create", "namespace", name)
    async with rest.connect(plane) as api, watching(api, name) as witness:
        with node(plane, name, test=name):
            async with process.kept(plane, watch=name) as operator:
                yield GangCluster(api, name, operator)
        conflicts = "PodGroup"  # the witness does not follow PodGroups, so it cannot know who owns them
        assert [said for said in witness.violations() if conflicts not in said] == []
    assert not plane.forbidden()


@pytest.fixture
async def cluster(gang_plane: ControlPlane) -> AsyncIterator[GangCluster]:
    """Return a namespace of the control plane that places gangs."""
    async with operated(gang_plane) as cluster:
        yield cluster


@pytest.fixture
async def api(cluster: GangCluster) -> Api:
    """Return a client of the API server, as admin."""
    return cluster.api


@pytest.fixture
async def kubelet(cluster: GangCluster) -> AsyncIterator[Kubelet]:
    """Return a kubelet for the pods that the scheduler has bound."""
    async with kubelets.playing(cluster.api, cluster.namespace, places=False) as kubelet:
        yield kubelet
