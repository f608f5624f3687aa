"""A real Kueue places gangs by topology: do their ranks have the order of racks and hosts?

The operator, the API server and Kueue are real; the nodes have no kubelets. Each topology is drawn: racks,
hosts with random names, and their capacities. Its gangs require or prefer one rack; two are placed at a time,
so the second one gets what the first has left.
"""

from __future__ import annotations

import asyncio
import os
import random
from dataclasses import dataclass
from functools import partial
from typing import Any

from tests.bench import report
from tests.bench.preemption import planes
from tests.integration import kubelet as kubelets
from tests.integration.controlplane import ControlPlane
from tests.integration.kubelet import Kubelet, runs
from tests.integration.kueue.conftest import QueuedCluster, operated
from tests.integration.kueue.places import HOST, RACK, add_node, create_topology
from tests.support.predicates import phase

Json = dict[str, Any]
TOPOLOGIES, GANGS = int(os.environ.get("DTJ_TOPOLOGIES", "10")), 10
WITHIN_S = 120.0


@dataclass(frozen=True)
class Node:
    """A host of a topology and the number of pods that it has capacity for."""

    rack: str
    name: str
    capacity: int


def draw(seed: int) -> list[Node]:
    """Return the nodes of a topology; the order of their names tells nothing about the order of creation."""
    chosen = random.Random(seed)
    racks = [f"rack-{chosen.randrange(1000):03}-{number}" for number in range(chosen.randint(2, 4))]
    nodes = [
        Node(rack, f"host-{chosen.randrange(16**6):06x}", chosen.randint(1, 4))
        for rack in racks
        for _ in range(chosen.randint(2, 4))
    ]
    chosen.shuffle(nodes)
    return nodes


def main() -> None:
    """Measure and write the section of the page."""
    with planes() as (plane, _):
        found = asyncio.run(measure(plane))
    head = ["topologies", "gangs", "on one rack, where required", "ranks in the order of racks and hosts"]
    report.write("placement", report.table(head, [found]))


async def measure(plane: ControlPlane) -> list[object]:
    """Place all gangs of all topologies, and return the row."""
    results = [found for seed in range(TOPOLOGIES) for found in await _topology(plane, seed)]
    together = [whole for whole, _ in results if whole is not None]
    ordered = sum(order for _, order in results)
    return [TOPOLOGIES, len(results), f"{sum(together)} of {len(together)}", f"{ordered} of {len(results)}"]


async def _topology(plane: ControlPlane, seed: int) -> list[tuple[bool | None, bool]]:
    nodes, chosen = draw(seed), random.Random(f"gangs of {seed}")
    racks = {node.rack: sum(each.capacity for each in nodes if each.rack == node.rack) for node in nodes}
    async with operated(plane) as cluster, kubelets.playing(cluster.api, cluster.namespace) as kubelet:
        for node in nodes:
            add_node(plane, node.name, cluster.namespace, node.rack, node.capacity)
        await create_topology(cluster)
        flavor = {"nodeLabels": {"test": cluster.namespace}, "topologyName": cluster.namespace}
        await cluster.open(sum(racks.values()), flavor)
        found = []
        for number in range(0, GANGS, 2):
            sizes = [chosen.randint(2, max(racks.values())) for _ in range(2)]
            mode = chosen.choice(["required", "preferred"])
            names = [f"gang-{number + index}" for index in range(2)]
            for name, size in zip(names, sizes, strict=True):
                await _submit(cluster, name, size, mode)
            placing = map(partial(_placed, cluster, kubelet, mode, nodes), names, sizes)
            found += await asyncio.gather(*placing)
        print(f"topology {seed}: {len(nodes)} hosts in {len(racks)} racks: {found}", flush=True)
        return found


async def _submit(cluster: QueuedCluster, name: str, size: int, mode: str) -> None:
    container = {"name": "trainer", "image": "trainer:1", "resources": {"requests": {"cpu": "1"}}}
    template = {
        "metadata": {"annotations": {f"kueue.x-k8s.io/podset-{mode}-topology": RACK}},
        "spec": {"containers": [container], "terminationGracePeriodSeconds": 1},
    }
    await cluster.enqueue(name, replicas=size, template=template)


async def _placed(
    cluster: QueuedCluster, kubelet: Kubelet, mode: str, nodes: list[Node], job: str, size: int
) -> tuple[bool | None, bool]:
    """Wait until Kueue has chosen all hosts and all pods run, and let them finish.

    Return whether they are in one rack (None: it was not required), and whether they are in order.
    """
    names = [f"{job}-{rank}" for rank in range(size)]

    def running(pods: dict[str, Json]) -> bool:  # they start once Kueue has chosen their hosts
        return all(name in pods and runs(pods[name]) for name in names)

    pods = await kubelet.until(running, within_s=WITHIN_S)
    rack_of = {node.name: node.rack for node in nodes}
    hosts = [pods[name]["spec"]["nodeSelector"][HOST] for name in names]
    places = [(rack_of[host], host) for host in hosts]
    for name in names:
        await kubelet.finish(name)
    await cluster.until(phase("Succeeded"), job)
    return len({rack for rack, _ in places}) == 1 if mode == "required" else None, places == sorted(places)


if __name__ == "__main__":
    main()
