"""Pods that stay Terminating: on a node that is Ready, and because of a finalizer."""

from __future__ import annotations

import pytest

from tests.integration.kubelet import Kubelet
from tests.integration.operator.conftest import Cluster
from tests.integration.operator.test_nodes import avoids, nodes
from tests.integration.operator.test_scope import HEALING, recovered, uids
from tests.support.predicates import condition, phase

__all__ = ["nodes"]


@pytest.mark.usefixtures("impatient", "nodes")
async def test_pod_that_does_not_terminate_on_a_ready_node_is_reported_and_force_deleted(
    cluster: Cluster, kubelet: Kubelet
):
    await cluster.submit(recovery={**HEALING, "terminationSeconds": 300})
    before = uids(await kubelet.until_running("job-0", "job-1"))
    await cluster.until(phase("Running"))
    kubelet.holds = {"job-1"}  # its kubelet cannot end it
    kubelet.starts = False

    await cluster.api.delete(f"{cluster.pods}/job-1")
    job = await cluster.until(condition("PodsReady", "False", "PodTerminating"))
    assert "pod job-1 on node node-1 does not terminate" in job["status"]["message"]
    assert f"kubectl delete pod job-1 -n {cluster.namespace} --force" in job["status"]["message"]
    (entry,) = job["status"]["avoidedNodes"]
    assert (entry["node"], entry["stuck"]) == ("node-1", True)

    await cluster.change(recovery={"terminationSeconds": 1})
    pods = await kubelet.until(lambda pods: uids(pods).get("job-1", before["job-1"]) != before["job-1"])
    assert avoids(pods["job-1"]) == ["node-1"]
    await kubelet.start("job-1", node="node-2")
    await cluster.until(recovered(0, disruptions=1))
    assert uids(kubelet.pods)["job-0"] == before["job-0"]


@pytest.mark.usefixtures("impatient")
async def test_finalizer_that_keeps_a_pod_is_named_until_it_is_removed(cluster: Cluster, kubelet: Kubelet):
    await cluster.submit(recovery=HEALING)
    before = await kubelet.until_running("job-0", "job-1")
    await cluster.until(phase("Running"))
    pod = f"{cluster.pods}/job-1"
    await cluster.api.patch(pod, {"metadata": {"finalizers": ["example.com/audit"]}})

    await kubelet.finish("job-1", 1)
    job = await cluster.until(condition("PodsReady", "False", "PodTerminating"))
    said = "pod job-1 has ended, but its finalizer example.com/audit keeps it"
    assert said in job["status"]["message"]
    assert said in (await cluster.until_event("PodTerminating"))["note"]

    await cluster.api.patch(pod, {"metadata": {"finalizers": None}})
    after = await kubelet.until_running("job-0", "job-1")
    assert after["job-1"]["metadata"]["uid"] != before["job-1"]["metadata"]["uid"]
