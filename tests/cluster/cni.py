"""The pod network of our own node image: the standard ptp plugin, and one route per peer node.

That is what kind's network plugin sets up, done once from outside instead of watched from inside: the
cluster's nodes do not change. It enforces no NetworkPolicy. Idempotent; a node that was restarted needs
it again, since its routes and rules are gone and its address may be another one.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass

from tests.cluster import config
from tests.cluster.engine import Engine
from tests.support.kubectl import Json

CONFIG_FILE = "/etc/cni/net.d/10-pods.conflist"


@dataclass(frozen=True, kw_only=True)
class Node:
    """A node, the addresses of its pods, and its own address."""

    name: str
    pods: str
    address: str


def configure(engine: Engine, manifests: Iterable[Json]) -> None:
    """Set up nodes, given as the API server knows them; their containers bear their names."""
    nodes = [parse(manifest) for manifest in manifests]
    for node in nodes:
        engine("exec", "--interactive", node.name, "sh", "-c", script(node, nodes), stdin=plugins(node))


def parse(node: Json) -> Node:
    addresses = {
        each["type"]: each["address"] for each in reversed(node["status"]["addresses"])
    }  # first one wins
    return Node(name=node["metadata"]["name"], pods=node["spec"]["podCIDR"], address=addresses["InternalIP"])


def plugins(node: Node) -> str:
    """The node's plugin configuration: a veth pair per pod, addresses from the node's own range."""
    address_pool = {
        "type": "host-local",
        "dataDir": "/run/cni-ipam-state",  # gone after a restart, like the pods that had the addresses
        "routes": [{"dst": "0.0.0.0/0"}],
        "ranges": [[{"subnet": node.pods}]],
    }
    return json.dumps(
        {
            "cniVersion": "0.3.1",
            "name": "pods",
            "plugins": [
                {"type": "ptp", "ipMasq": False, "mtu": 1500, "ipam": address_pool},
                {"type": "portmap", "capabilities": {"portMappings": True}},
            ],
        }
    )


def script(node: Node, nodes: list[Node]) -> str:
    """What the node runs, its plugin configuration on stdin: routes to its peers, a way out for its pods."""
    # Written beside and renamed: containerd watches the folder and must never read half a file.
    write = f"cat > {CONFIG_FILE}.new && mv {CONFIG_FILE}.new {CONFIG_FILE}"
    routes = [f"ip route replace {peer.pods} via {peer.address}" for peer in nodes if peer != node]
    rule = f"POSTROUTING -s {node.pods} ! -d {config.POD_NETWORK} -j MASQUERADE"
    masquerade = f"{{ iptables -t nat -C {rule} 2>/dev/null || iptables -t nat -A {rule}; }}"
    return " && ".join([write, *routes, masquerade])
