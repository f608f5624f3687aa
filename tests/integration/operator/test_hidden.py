"""A child loses our label at the worst moment: the watch reports it as deleted, but it still exists."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest

from tests.chaos.witness import Witness
from tests.integration.api import POLICIES, SERVICES, Api
from tests.integration.controlplane import ControlPlane
from tests.integration.kubelet import Kubelet
from tests.integration.operator import process
from tests.integration.operator.conftest import Cluster
from tests.integration.operator.process import Kept
from tests.support.predicates import phase

Json = dict[str, Any]
UNSEEN: Json = {"metadata": {"labels": {"dtj.dev/job-name": None}}}
ONE_FAULT = {"backoffSeconds": 0, "maxRestarts": 0}


async def running(cluster: Cluster, kubelet: Kubelet, **spec: Any) -> None:
    """Start a job of three replicas and wait until it is running."""
    await cluster.submit(replicas=3, **spec)
    await kubelet.until_running("job-0", "job-1", "job-2")
    await cluster.until(phase("Running"))


async def restarting(cluster: Cluster, kubelet: Kubelet) -> None:
    """Make it restart, while pod 0 keeps terminating."""
    kubelet.holds.add("job-0")
    await kubelet.finish("job-1", 1)
    await kubelet.until(lambda pods: "deletionTimestamp" in pods.get("job-0", {"metadata": {}})["metadata"])
    await kubelet.until(lambda pods: set(pods) == {"job-0"})


async def still_alone(cluster: Cluster, kubelet: Kubelet) -> None:
    """Give the operator time to do the wrong thing: another job starts meanwhile."""
    await cluster.submit("other")
    await cluster.until(phase("Running"), "other")
    assert {name for name in kubelet.pods if name.startswith("job-")} == {"job-0"}


async def recovers(cluster: Cluster, kubelet: Kubelet) -> None:
    """Let the pod stop, and wait until the job is running again."""
    await kubelet.release("job-0")
    await cluster.until(lambda job: phase("Running")(job) and job["status"]["ready"] == "3/3")
    assert (await cluster.job())["status"]["attempt"] == 1


async def test_next_attempt_waits_for_a_terminating_pod_without_its_label(
    cluster: Cluster, kubelet: Kubelet, operator: Kept, witness: Witness
):
    await running(cluster, kubelet)
    await restarting(cluster, kubelet)

    await cluster.api.patch(f"{cluster.pods}/job-0", UNSEEN)

    await still_alone(cluster, kubelet)
    await recovers(cluster, kubelet)
    await witness.settled()


async def test_next_attempt_waits_for_a_pod_that_a_new_operator_never_saw(
    cluster: Cluster, kubelet: Kubelet, granted: ControlPlane, witness: Witness
):
    async with process.kept(granted, watch=cluster.namespace):
        await running(cluster, kubelet)
        await restarting(cluster, kubelet)
    await cluster.api.patch(f"{cluster.pods}/job-0", UNSEEN)

    async with process.kept(granted, watch=cluster.namespace, identity="operator-1"):
        await still_alone(cluster, kubelet)
        await recovers(cluster, kubelet)
        await witness.settled()


@pytest.mark.parametrize("folder", [SERVICES, POLICIES])
async def test_child_that_lost_its_label_as_the_job_failed_is_deleted(
    cluster: Cluster, kubelet: Kubelet, operator: Kept, witness: Witness, folder: str
):
    await running(cluster, kubelet, recovery=ONE_FAULT)
    operator.freeze()
    await cluster.api.patch(f"{folder.format(cluster.namespace)}/job", UNSEEN)
    await kubelet.finish("job-1", 1)
    operator.thaw()

    await cluster.until(phase("Failed"))
    await witness.settled()


async def test_child_of_a_failed_job_that_a_new_operator_never_saw_is_deleted(
    cluster: Cluster, kubelet: Kubelet, granted: ControlPlane, witness: Witness
):
    async with process.kept(granted, watch=cluster.namespace):
        await running(cluster, kubelet, recovery=ONE_FAULT)
    await cluster.api.patch(f"{SERVICES.format(cluster.namespace)}/job", UNSEEN)
    await cluster.api.patch(f"{cluster.pods}/job-0", UNSEEN)
    await kubelet.finish("job-1", 1)

    async with process.kept(granted, watch=cluster.namespace, identity="operator-1"):
        await cluster.until(phase("Failed"))
        await witness.settled()


async def test_pod_that_lost_its_label_as_the_job_was_suspended_is_stopped(
    cluster: Cluster, kubelet: Kubelet, operator: Kept, witness: Witness
):
    await running(cluster, kubelet)
    operator.freeze()
    await cluster.api.patch(f"{cluster.pods}/job-0", UNSEEN)
    await cluster.change(suspend=True)
    operator.thaw()

    await kubelet.until(lambda pods: not pods)
    await cluster.until(phase("Suspended"))
    await witness.settled()


async def test_last_state_of_a_deleted_pod_has_no_grace_period_left(
    cluster: Cluster, kubelet: Kubelet, api: Api
):
    """So the operator can distinguish, without a request, a deleted pod from one that only lost its label."""
    ways: dict[str, Json] = {
        "in-its-own-time": {},
        "at-once": {"gracePeriodSeconds": 0},
        "before-it-had-a-node": {},
        "when-it-had-ended": {},
    }
    kubelet.starts = False
    spec: Json = {
        "containers": [{"name": "trainer", "image": "trainer:1"}],
        "terminationGracePeriodSeconds": 9,
    }
    for name in ways:
        await api.create(cluster.pods, {"metadata": {"name": name}, "spec": spec})
    await kubelet.until(lambda pods: len(pods) == len(ways))
    for name in set(ways) - {"before-it-had-a-node"}:
        await kubelet.start(name)
    await kubelet.finish("when-it-had-ended", 1)
    version = (await api.get(cluster.pods))["metadata"]["resourceVersion"]

    for name, options in ways.items():
        await api.delete(f"{cluster.pods}/{name}", **options)

    grace_s: dict[str, Any] = {}
    async for name, grace in _ends(api, cluster.pods, version):
        grace_s[name] = grace
        if len(grace_s) == len(ways):
            break
    assert grace_s == dict.fromkeys(ways, 0)


async def _ends(api: Api, folder: str, version: str) -> AsyncIterator[tuple[str, Any]]:
    async with aclosing(api.follow(folder, version)) as events:
        async for kind, pod in events:
            if kind == "DELETED":
                yield pod["metadata"]["name"], pod["metadata"].get("deletionGracePeriodSeconds")
