"""Nodes without kubelets, and the topology of racks and hosts by which a real Kueue places pods on them."""

from __future__ import annotations

import json
from typing import Any

from tests.integration.controlplane import ControlPlane
from tests.integration.kubelet import now
from tests.integration.kueue.conftest import QueuedCluster
from tests.integration.kueue.standin import GROUP, VERSION

Json = dict[str, Any]
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
    plane.kubectl.set_status("node", name, capacity=resources, allocatable=resources, conditions=[ready])
    plane.kubectl("taint", "node", name, "node.kubernetes.io/not-ready-", check=False)


def lose_node(plane: ControlPlane, name: str) -> None:
    """Set what the controller manager sets for a node that is silent."""
    unknown = {"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown", "message": "silent"}
    plane.kubectl.set_status("node", name, conditions=[{**unknown, "lastTransitionTime": now()}])
