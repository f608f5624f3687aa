"""Nodes without kubelets, and the topology of racks and hosts by which a real Kueue places pods on them."""

from __future__ import annotations

import json

from tests.integration.controlplane import ControlPlane
from tests.integration.kueue.conftest import QueuedCluster
from tests.integration.kueue.standin import GROUP, VERSION

API = f"{GROUP}/{VERSION}"
HOST, RACK = "kubernetes.io/hostname", "example.com/rack"


async def create_topology(cluster: QueuedCluster) -> None:
    """Create a topology of racks and hosts with the name of the namespace."""
    spec = {"levels": [{"nodeLabel": RACK}, {"nodeLabel": HOST}]}
    body = {"apiVersion": API, "kind": "Topology", "metadata": {"name": cluster.namespace}, "spec": spec}
    await cluster.api.create(f"/apis/{API}/topologies", body)


def add_node(plane: ControlPlane, name: str, test: str, rack: str, capacity: int = 2) -> None:
    """Add a node with capacity for a number of pods of a test that request one CPU each."""
    labels = {"test": test, RACK: rack, HOST: name}
    body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}}
    plane.kubectl("create", "-f", "-", given=json.dumps(body))
    resources = {"cpu": str(capacity), "memory": "8Gi", "pods": "110"}
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "ready"}
    status = {"status": {"capacity": resources, "allocatable": resources, "conditions": [ready]}}
    plane.kubectl("patch", "node", name, "--subresource=status", "--type=merge", "-p", json.dumps(status))
    plane.kubectl("taint", "node", name, "node.kubernetes.io/not-ready-", check=False)
