"""A control plane of Kubernetes 1.36 with PodGroups and a scheduler, and nodes without kubelets."""

from __future__ import annotations

import contextlib
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
from tests.integration.operator import process
from tests.integration.operator.conftest import Cluster, grant

__all__ = ["helm"]
Json = dict[str, Any]
PODS_THAT_FIT = 4
POD_GROUPS = "/apis/scheduling.k8s.io/v1alpha2/namespaces/{}/podgroups"


@pytest.fixture(scope="session")
def gang_plane(helm: Helm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """Return a control plane with our CRD and the chart's roles."""
    gates = (*controlplane.GANG_GATES, *controlplane.MORE_GANG_GATES)
    with controlplane.placing_gangs(tmp_path_factory.mktemp("gangs"), gates=gates) as plane:
        controlplane.install_crd(plane)
        grant(helm, plane)
        yield plane


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
    status = {"status": {"capacity": room, "allocatable": room, "conditions": [ready]}}
    plane.kubectl("patch", "node", name, "--subresource=status", "--type=merge", "-p", json.dumps(status))
    plane.kubectl("taint", "node", name, "node.kubernetes.io/not-ready-")
    try:
        yield
    finally:
        plane.kubectl("delete", "node", name)


class GangCluster(Cluster):
    """A namespace with a node of its own."""

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


@pytest.fixture
async def cluster(gang_plane: ControlPlane) -> AsyncIterator[GangCluster]:
    """Return a namespace with a node of its own, and an operator that watches it."""
    name = f"gang-{uuid.uuid4().hex[:6]}"
    gang_plane.kubectl("create", "namespace", name)
    async with rest.connect(gang_plane) as api, watching(api, name) as witness:
        with node(gang_plane, name, test=name):
            async with process.kept(gang_plane, watch=name) as operator:
                yield GangCluster(api, name)
                operator.check()
        conflicts = "PodGroup"  # the witness does not follow PodGroups, so it cannot know who owns them
        assert [said for said in witness.violations() if conflicts not in said] == []
    assert not gang_plane.forbidden()


@pytest.fixture
async def api(cluster: GangCluster) -> Api:
    """Return a client of the API server, as admin."""
    return cluster.api


@pytest.fixture
async def kubelet(cluster: GangCluster) -> AsyncIterator[Kubelet]:
    """Return a kubelet for the pods that the scheduler has bound."""
    async with kubelets.playing(cluster.api, cluster.namespace, places=False) as kubelet:
        yield kubelet
