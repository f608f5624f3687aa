"""The status is true at every moment, and nothing stays in it longer than it is true."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.integration.kubelet import Kubelet
from tests.integration.operator.conftest import Cluster
from tests.integration.operator.test_elastic import find_no_room
from tests.integration.operator.test_lifecycle import of
from tests.support.predicates import condition, phase

pytestmark = pytest.mark.usefixtures("operator")
Json = dict[str, Any]


async def test_deleted_pod_that_had_finished_is_not_a_disruption(cluster: Cluster, kubelet: Kubelet):
    await cluster.submit(replicas=3)
    await kubelet.until_running("job-0", "job-1", "job-2")
    for name in ("job-1", "job-2"):
        await kubelet.finish(name)
    await cluster.until(lambda job: job.get("status", {}).get("memory", {}).get("done") == "1-2")

    await asyncio.gather(*(cluster.api.delete(f"{cluster.pods}/job-{index}") for index in (1, 2)))
    await kubelet.until(lambda pods: set(pods) == {"job-0"})
    await kubelet.finish("job-0")

    job = await cluster.until(phase("Succeeded"))
    assert (job["status"]["attempt"], job["status"]["restarts"]["total"]) == (0, 0)
    assert job["status"]["replicaStatuses"] == {"ready": 0, "active": 0, "succeeded": 3, "failed": 0}
    assert sorted(name for name, _ in kubelet.born) == ["job-0", "job-1", "job-2"]


async def test_obstacle_is_reported_until_it_is_gone(cluster: Cluster, kubelet: Kubelet):
    kubelet.starts = False
    await cluster.submit()
    await kubelet.until(lambda pods: len(pods) == 2)
    await find_no_room(kubelet, "job-1")
    blocked = await cluster.until(condition("PodsReady", "False", "Unschedulable"))
    assert "Insufficient nvidia.com/gpu" in blocked["status"]["message"]

    for name in ("job-0", "job-1"):
        await kubelet.start(name)

    running = await cluster.until(lambda job: phase("Running")(job) and condition("PodsReady")(job))
    assert "message" not in running["status"]
    assert of(running, "Healthy")["reason"] == "Running"
