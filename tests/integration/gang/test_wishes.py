"""What the template and the spec ask of a real kube-scheduler beside starting whole."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from tests.integration.controlplane import ControlPlane
from tests.integration.gang.conftest import GangCluster, node
from tests.integration.gang.test_gang import PRIORITY_CLASSES, group_of
from tests.integration.kubelet import Kubelet, runs
from tests.support.predicates import phase

Json = dict[str, Any]
pytestmark = pytest.mark.xdist_group("gang")  # in one process, since their control plane is expensive
LONG_AGO = "2026-01-01T00:00:00Z"
ALL_IN_ONE = {
    "nodeAffinity": {
        "preferredDuringSchedulingIgnoredDuringExecution": [
            {
                "weight": 100,
                "preference": {"matchExpressions": [{"key": "rack", "operator": "In", "values": ["r1"]}]},
            }
        ]
    }
}


async def racks_of(cluster: GangCluster, kubelet: Kubelet) -> Counter[str]:
    """Return how many pods of the running job are in each rack."""
    await cluster.until(phase("Running"))
    racks = Counter[str]()
    for pod in kubelet.pods.values():
        found = await cluster.api.get(f"/api/v1/nodes/{pod['spec']['nodeName']}")
        racks[found["metadata"]["labels"].get("rack", "")] += 1
    return racks


async def test_gang_is_spread_as_its_template_says(
    cluster: GangCluster, kubelet: Kubelet, gang_plane: ControlPlane
):
    """All would fit into the rack that they prefer."""
    name = cluster.namespace
    spread = {
        "maxSkew": 1,
        "topologyKey": "rack",
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"dtj.dev/job-name": "job"}},
    }
    with (
        node(gang_plane, f"{name}-1", test=name, rack="r1"),
        node(gang_plane, f"{name}-2", test=name, rack="r2"),
    ):
        pod_spec = {"affinity": ALL_IN_ONE, "topologySpreadConstraints": [spread]}
        await cluster.submit(replicas=4, pod_spec=pod_spec)
        assert await racks_of(cluster, kubelet) == {"r1": 2, "r2": 2}
        assert {group_of(pod) for pod in kubelet.pods.values()} == {"job-0"}


@pytest.mark.parametrize("mode", ["Required", "Preferred"])
async def test_pods_that_are_placed_one_by_one_share_a_rack_too(
    cluster: GangCluster, kubelet: Kubelet, gang_plane: ControlPlane, mode: str
):
    """By the affinity between them alone; else the scheduler balances them."""
    name = cluster.namespace
    with (
        node(gang_plane, f"{name}-1", test=name, rack="r1", racked="yes"),
        node(gang_plane, f"{name}-2", test=name, rack="r2", racked="yes"),
    ):
        wanted = {"gang": "None", "topology": {"key": "rack", "mode": mode}}
        await cluster.submit(scheduling=wanted, pod_spec={"nodeSelector": {"test": name, "racked": "yes"}})
        racks = await racks_of(cluster, kubelet)
        assert len(racks) == 1
        assert (await cluster.job())["status"]["domains"] == list(racks)
        assert {group_of(pod) for pod in kubelet.pods.values()} == {None}


async def test_elastic_gang_loses_only_the_pods_whose_places_are_needed(
    cluster: GangCluster, kubelet: Kubelet
):
    """At least the oldest pod stays.

    While the first two end, the scheduler may choose again, and then up to three, as it counts a nominated
    pod twice. Of equal priority it takes the youngest, and among pods that started in the same second any.
    """
    urgent = f"urgent-{cluster.namespace}"
    await cluster.api.create(PRIORITY_CLASSES, {"metadata": {"name": urgent}, "value": 1})
    elastic = {"minReplicas": 2, "maxReplicas": 4}
    await cluster.submit(replicas=4, elastic=elastic, recovery={"scope": "Replica"})
    first = await kubelet.until_running("job-0", "job-1", "job-2", "job-3")
    await kubelet.set_status("job-0", {"startTime": LONG_AGO})

    await cluster.submit("urgent", replicas=2, pod_spec={"priorityClassName": urgent})

    await cluster.until(phase("Running"), "urgent")
    assert runs(kubelet.pods["job-0"])
    assert kubelet.pods["job-0"]["metadata"]["uid"] == first["job-0"]["metadata"]["uid"]
    assert (await cluster.job())["status"].get("attempt", 0) == 0
