"""An elastic job changes its size: when the user scales it, and with the capacity of the cluster."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.kubelet import Kubelet, now
from tests.integration.operator.conftest import Cluster
from tests.integration.operator.test_lifecycle import of
from tests.integration.operator.test_scope import HEALING, uids
from tests.support.kubectl import Kubectl
from tests.support.predicates import condition, phase

pytestmark = pytest.mark.usefixtures("impatient")
Json = dict[str, Any]
LONG_AGO = "2026-01-01T00:00:00Z"
WHOLE = {"scope": "Job", "backoffSeconds": 0}


def settled(replicas: int) -> Any:
    """Return a predicate: the job runs with this number of pods, and all are ready."""
    return lambda job: phase("Running")(job) and job["status"].get("ready") == f"{replicas}/{replicas}"


def is_second(pod: Json) -> bool:
    return str(pod["metadata"]["labels"]["dtj.dev/attempt"]) == "1"


async def find_no_room(kubelet: Kubelet, name: str) -> None:
    says = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
    refused = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": says}
    await kubelet.set_status(name, {"conditions": [{**refused, "lastTransitionTime": now()}]})


async def submit_with_room_for_two(cluster: Cluster, kubelet: Kubelet, **spec: Any) -> None:
    """Of three replicas the last one is unschedulable."""
    kubelet.starts = False
    await cluster.submit(replicas=3, **spec)
    await kubelet.until(lambda pods: len(pods) == 3)
    for name in ("job-0", "job-1"):
        await kubelet.start(name)
    await find_no_room(kubelet, "job-2")


async def test_scaling_touches_no_other_pod(cluster: Cluster, kubelet: Kubelet, kubectl: Kubectl):
    await cluster.submit(elastic={"minReplicas": 1, "maxReplicas": 4}, recovery=HEALING)
    first = uids(await kubelet.until_running("job-0", "job-1"))
    await cluster.until(settled(2))

    kubectl("scale", "dtj", "job", "--replicas=4")
    grown = uids(await kubelet.until_running("job-0", "job-1", "job-2", "job-3"))
    await cluster.until(settled(4))
    scale = await cluster.api.get(f"{cluster.jobs}/job/scale")
    assert (scale["spec"]["replicas"], scale["status"]["replicas"]) == (4, 4)
    listed = await cluster.api.items(cluster.pods, labelSelector=scale["status"]["selector"])
    assert len(listed) == 4

    kubectl("scale", "dtj", "job", "--replicas=1")
    shrunk = uids(await kubelet.until_running("job-0"))
    job = await cluster.until(settled(1))

    assert first.items() <= grown.items()
    assert shrunk.items() <= first.items()
    status = job["status"]
    assert (status["attempt"], status["restarts"]["total"], status["worldSize"]) == (0, 0, 1)
    for note in ("the job trains with 4 ranks now, before with 2", "Scaling down: spec.replicas is 1 now;"):
        await cluster.until_event("Resized", note=note)


async def test_pod_that_stops_slowly_and_is_wanted_again_is_not_a_fault(cluster: Cluster, kubelet: Kubelet):
    await cluster.submit(elastic={"minReplicas": 1, "maxReplicas": 4}, recovery=HEALING)
    first = uids(await kubelet.until_running("job-0", "job-1"))
    await cluster.until(settled(2))
    kubelet.holds = {"job-1"}

    await cluster.change(replicas=1)
    await kubelet.until(lambda pods: "deletionTimestamp" in pods["job-1"]["metadata"])
    await cluster.change(replicas=2)
    await kubelet.confirm_stopped("job-1")

    await kubelet.until(lambda pods: uids(pods).get("job-1", first["job-1"]) != first["job-1"])
    job = await cluster.until(settled(2))
    assert (job["status"]["attempt"], job["status"]["restarts"]["total"]) == (0, 0)


async def test_without_in_place_restarts_a_new_size_is_a_new_attempt(cluster: Cluster, kubelet: Kubelet):
    await cluster.submit(elastic={"minReplicas": 1, "maxReplicas": 4}, recovery=WHOLE)
    await kubelet.until_running("job-0", "job-1")
    await cluster.until(settled(2))

    await cluster.change(replicas=3)

    job = await cluster.until(settled(3))
    pods = await kubelet.until_running("job-0", "job-1", "job-2")
    assert {pod["metadata"]["labels"]["dtj.dev/attempt"] for pod in pods.values()} == {"1"}
    env = {e["name"]: e.get("value") for e in pods["job-0"]["spec"]["containers"][0]["env"]}
    assert (env["WORLD_SIZE"], env["PET_NNODES"], env["DTJ_MIN_REPLICAS"]) == ("3", "1:4", "1")
    assert job["status"]["restarts"]["total"] == 0


async def test_job_with_in_place_restarts_continues_without_an_unschedulable_pod(
    cluster: Cluster, kubelet: Kubelet
):
    await submit_with_room_for_two(
        cluster, kubelet, elastic={"minReplicas": 2, "maxReplicas": 3}, recovery=HEALING
    )

    job = await cluster.until(phase("Running"))
    assert of(job, "Healthy")["reason"] == "RunningWithFewer"
    assert "Insufficient nvidia.com/gpu" in of(job, "PodsReady")["message"]
    assert (job["status"]["replicas"], job["status"]["worldSize"]) == (2, 2)

    await kubelet.start("job-2")
    job = await cluster.until(settled(3))
    assert of(job, "Healthy")["reason"] == "Running"
    assert (job["status"]["attempt"], job["status"]["restarts"]["total"]) == (0, 0)


async def test_pod_that_is_scheduled_after_the_first_pod_ended_is_not_waited_for(
    cluster: Cluster, kubelet: Kubelet
):
    await submit_with_room_for_two(
        cluster, kubelet, elastic={"minReplicas": 1, "maxReplicas": 3}, recovery=HEALING
    )
    await cluster.until(phase("Running"))

    await kubelet.finish("job-1", message='{"reason": "Done"}')
    await kubelet.start("job-2", placed_at=now())
    await cluster.until(lambda job: job["status"]["worldSize"] == 3)
    await kubelet.finish("job-0", message='{"reason": "Done"}')

    job = await cluster.until(phase("Succeeded"))
    assert (job["status"]["restarts"]["total"], job["status"]["attempt"]) == (0, 0)
    await kubelet.until(lambda pods: set(pods) == {"job-0", "job-1"})


async def test_job_waits_if_fewer_than_its_minimum_are_schedulable(cluster: Cluster, kubelet: Kubelet):
    await submit_with_room_for_two(
        cluster, kubelet, elastic={"minReplicas": 3, "maxReplicas": 3}, recovery=HEALING
    )

    job = await cluster.until(
        lambda job: (
            job.get("status", {}).get("ready") == "2/3"
            and condition("PodsReady", "False", "Unschedulable")(job)
        )
    )
    assert phase("Pending")(job)


async def test_attempt_shrinks_to_the_capacity_and_is_retried_in_full(cluster: Cluster, kubelet: Kubelet):
    await submit_with_room_for_two(
        cluster, kubelet, elastic={"minReplicas": 1, "maxReplicas": 3}, recovery=WHOLE
    )
    await kubelet.until(lambda pods: set(pods) == {"job-0", "job-1"} and all(map(is_second, pods.values())))
    for name in ("job-0", "job-1"):
        await kubelet.start(name)

    job = await cluster.until(
        lambda job: (
            phase("Running")(job) and job["status"]["attempt"] == 1 and "shortage" in job["status"]["memory"]
        )
    )
    assert (job["status"]["worldSize"], job["status"]["restarts"]["total"]) == (2, 0)
    assert "only 2 of 3 pods could start" in of(job, "PodsReady")["message"]
    assert job["status"]["memory"]["shortage"]["tries"] == 1

    # The ten minutes have passed.
    kubelet.starts = True
    await cluster.api.patch(
        f"{cluster.jobs}/job/status", {"status": {"memory": {"shortage": {"retryAt": 1}}}}
    )
    job = await cluster.until(settled(3))
    assert (job["status"]["attempt"], job["status"]["memory"].get("shortage")) == (2, None)


async def test_attempt_shrinks_to_what_a_quota_allows(cluster: Cluster, kubelet: Kubelet):
    quotas = f"/api/v1/namespaces/{cluster.namespace}/resourcequotas"
    unused = {"status": {"hard": {"pods": "2"}, "used": {"pods": "0"}}}
    await cluster.api.create(quotas, {"metadata": {"name": "two"}, "spec": {"hard": {"pods": "2"}}})
    await cluster.api.patch(f"{quotas}/two/status", unused)

    await cluster.submit(replicas=3, elastic={"minReplicas": 1, "maxReplicas": 3}, recovery=WHOLE)
    job = await cluster.until(lambda job: job.get("status", {}).get("attempt") == 1)
    assert job["status"]["message"].startswith("Restarting with 2 replicas: 1 of 3 pods could not start")
    # What the controller of quotas does once the pods of the first attempt are gone.
    await cluster.api.patch(f"{quotas}/two/status", unused)

    job = await cluster.until(lambda job: phase("Running")(job) and job["status"]["ready"] == "2/3")
    assert (job["status"]["worldSize"], job["status"]["restarts"]["total"]) == (2, 0)
    await kubelet.until(lambda pods: set(pods) == {"job-0", "job-1"} and all(map(is_second, pods.values())))
