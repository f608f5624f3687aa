"""What a fault restarts: only the failed pods if the other agents can recover in place, else all pods."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pytest
from aiohttp import web

from tests.integration.controlplane import ControlPlane
from tests.integration.kubelet import Kubelet
from tests.integration.operator import process
from tests.integration.operator.conftest import Cluster
from tests.integration.operator.process import Kept
from tests.support.ports import own_address
from tests.support.predicates import condition, phase

Json = dict[str, Any]
AGENT_PORT = 29400
ADDRESS = own_address()
HEALING = {"scope": "Replica", "backoffSeconds": 0}


def uids(pods: dict[str, Json]) -> dict[str, str]:
    return {name: pod["metadata"]["uid"] for name, pod in pods.items()}


def recovered(counted: int, disruptions: int = 0) -> Any:
    """Return a predicate: the job runs again after this number of incidents."""

    def holds(job: Json) -> bool:
        restarts = job.get("status", {}).get("restarts", {})
        found = restarts.get("counted"), restarts.get("disruptions")
        return phase("Running")(job) and found == (counted, disruptions)

    return holds


@pytest.mark.usefixtures("operator")
async def test_only_the_broken_pod_is_replaced(cluster: Cluster, kubelet: Kubelet):
    await cluster.submit(replicas=3, recovery=HEALING)
    before = uids(await kubelet.until_running("job-0", "job-1", "job-2"))

    await kubelet.finish("job-1", 1, message="RuntimeError: boom")

    job = await cluster.until(recovered(1))
    after = uids(await kubelet.until_running("job-0", "job-1", "job-2"))
    assert {name for name in after if after[name] != before[name]} == {"job-1"}
    assert job["status"]["attempt"] == 0
    assert job["status"]["failure"]["replica"] == 1
    assert "boom" in (await cluster.until_event("Restarting"))["note"]
    await cluster.until(lambda job: "replacing" not in job["status"]["memory"])


@pytest.mark.usefixtures("operator")
async def test_fault_of_a_survivor_is_another_incident(cluster: Cluster, kubelet: Kubelet):
    await cluster.submit(replicas=3, recovery=HEALING)
    before = uids(await kubelet.until_running("job-0", "job-1", "job-2"))
    await cluster.until(phase("Running"))
    kubelet.starts = False  # the replacement of the first pod does not start before the second pod fails

    await kubelet.finish("job-1", 1)
    await kubelet.until(lambda pods: uids(pods).get("job-1", before["job-1"]) != before["job-1"])
    await kubelet.finish("job-2", 1)
    await kubelet.until(lambda pods: uids(pods).get("job-2", before["job-2"]) != before["job-2"])
    for name in ("job-1", "job-2"):
        await kubelet.start(name)

    await cluster.until(recovered(2))
    assert uids(kubelet.pods)["job-0"] == before["job-0"]


@pytest.mark.usefixtures("operator")
async def test_deleted_pod_is_replaced_alone_and_costs_nothing(cluster: Cluster, kubelet: Kubelet):
    await cluster.submit(recovery={**HEALING, "maxRestarts": 0})
    before = uids(await kubelet.until_running("job-0", "job-1"))
    await cluster.until(phase("Running"))

    await cluster.api.delete(f"{cluster.pods}/job-1")

    job = await cluster.until(recovered(0, disruptions=1))
    assert (job["status"]["attempt"], uids(kubelet.pods)["job-0"]) == (0, before["job-0"])


async def fail_together(operator: Kept, kubelet: Kubelet, code: int, *names: str) -> None:
    """End pods so that the operator sees all of them end at the same time."""
    operator.freeze()
    await asyncio.gather(*(kubelet.finish(name, code) for name in names))
    await kubelet.until(lambda pods: all(pods[name]["status"]["phase"] == "Failed" for name in names))
    operator.thaw()


async def test_job_restarts_if_no_pod_is_left_to_recover_from(
    cluster: Cluster, kubelet: Kubelet, operator: Kept
):
    await cluster.submit(recovery=HEALING)
    await kubelet.until_running("job-0", "job-1")
    kubelet.starts = False
    await cluster.until(phase("Running"))

    await fail_together(operator, kubelet, 76, "job-0", "job-1")

    await kubelet.until(
        lambda pods: (
            set(pods) == {"job-0", "job-1"}
            and all(pod["metadata"]["labels"]["dtj.dev/attempt"] == "1" for pod in pods.values())
        )
    )
    assert (await cluster.job())["status"]["restarts"]["counted"] == 1


@pytest.mark.usefixtures("operator")
async def test_ranks_that_stop_with_a_deleted_pod_are_one_disruption(cluster: Cluster, kubelet: Kubelet):
    # Ranks that stop within this time belong to the deleted pod.
    pod = {"containers": [{"name": "trainer", "image": "trainer:1"}], "terminationGracePeriodSeconds": 600}
    await cluster.submit(replicas=3, recovery=HEALING, template={"spec": pod})
    before = uids(await kubelet.until_running("job-0", "job-1", "job-2"))
    await cluster.until(phase("Running"))
    kubelet.holds = {"job-1"}
    await cluster.api.delete(f"{cluster.pods}/job-1")
    await cluster.until(phase("Recovering"))

    await kubelet.finish("job-0", 75)
    await kubelet.until(lambda pods: uids(pods).get("job-0", before["job-0"]) != before["job-0"])
    await kubelet.confirm_stopped("job-1", before["job-1"])
    await kubelet.until(lambda pods: uids(pods).get("job-1", before["job-1"]) != before["job-1"])
    await kubelet.finish("job-2", 75)
    await kubelet.until(lambda pods: uids(pods).get("job-2", before["job-2"]) != before["job-2"])

    job = await cluster.until(
        lambda job: phase("Running")(job) and "replacing" not in job["status"]["memory"]
    )
    assert recovered(0, 1)(job), "this is one incident"
    after = uids(await kubelet.until_running("job-0", "job-1", "job-2"))
    assert after.keys() == before.keys()
    assert not set(after.values()) & set(before.values())
    assert job["status"]["failure"]["replica"] == 1


@contextlib.asynccontextmanager
async def agent(cluster: Cluster, address: str, answer: Json) -> AsyncIterator[Json]:
    """Simulate the agent of the job's replica 0, which answers with the contents of the dict."""

    async def status(_: web.Request) -> web.Response:
        identity = {"job": "job", "jobUid": (await cluster.job())["metadata"]["uid"], "replica": 0}
        return web.json_response(identity | {"at": datetime.now(UTC).isoformat()} | answer)

    app = web.Application()
    app.router.add_get("/status", status)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, address, AGENT_PORT).start()
    try:
        yield answer
    finally:
        await runner.cleanup()


async def test_agent_that_can_rejoin_narrows_the_scope_until_the_next_attempt(
    cluster: Cluster, kubelet: Kubelet, operator: Kept
):
    ledger = {"productive": 90.0, "startup": 5.0, "lost": 1.0, "recovering": 4.0}
    says = {"attempt": 0, "step": 7, "rejoin": True, "restarts": {"inPlace": 2}, "ledger": ledger}
    says["failure"] = {"rank": 1, "replica": 1, "reason": "Signal", "exitCode": 137, "signal": "SIGKILL"}
    async with agent(cluster, ADDRESS, says):
        kubelet.starts = False
        await cluster.submit(recovery={"backoffSeconds": 0})
        await kubelet.until(lambda pods: set(pods) == {"job-0", "job-1"})
        for name in ("job-1", "job-0"):
            await kubelet.start(name)
        await kubelet.set_status("job-0", {"podIP": ADDRESS, "podIPs": [{"ip": ADDRESS}]})
        before = uids(kubelet.pods)

        job = await cluster.until(lambda job: job.get("status", {}).get("memory", {}).get("rejoins"))
        assert job["status"]["restarts"]["inPlace"] == job["status"]["restarts"]["counted"] == 2
        assert job["status"]["goodput"]["productiveSeconds"] == 90
        assert (job["status"]["failure"]["node"], job["status"]["failure"]["signal"]) == ("node-1", "SIGKILL")
        assert "rank 1 (replica 1) on node node-1" in (await cluster.until_event("RestartedInPlace"))["note"]

        kubelet.starts = True
        await kubelet.finish("job-1", 1)
        job = await cluster.until(recovered(3))
        assert (job["status"]["attempt"], uids(kubelet.pods)["job-0"]) == (0, before["job-0"])
        assert job["status"]["restarts"]["inPlace"] == 2, (
            "a pod that the operator replaced is not counted twice"
        )

        await fail_together(operator, kubelet, 1, "job-0", "job-1")
        job = await cluster.until(lambda job: job["status"]["attempt"] == 1)
        assert "rejoins" not in job["status"].get("memory", {}), "no agent of this attempt has answered yet"
        assert job["status"]["restarts"]["inPlace"] == 2


async def test_operator_that_is_killed_between_verdict_and_action_replaces_the_same_pod_once(
    granted: ControlPlane, cluster: Cluster, kubelet: Kubelet, namespace: str
):
    async with process.kept(granted, watch=namespace):
        await cluster.submit(replicas=3, recovery=HEALING)
        before = uids(await kubelet.until_running("job-0", "job-1", "job-2"))
        await cluster.until(phase("Running"))
        kubelet.holds = {"job-1"}  # it stops slowly
        kubelet.starts = False
        await cluster.api.delete(f"{cluster.pods}/job-1")
        await cluster.until(lambda job: job.get("status", {}).get("memory", {}).get("replacing"))

    await kubelet.confirm_stopped("job-1", before["job-1"])
    async with process.kept(granted, watch=namespace, identity="operator-1"):
        await kubelet.until(lambda pods: uids(pods).get("job-1", before["job-1"]) != before["job-1"])
        await kubelet.start("job-1")
        job = await cluster.until(
            lambda job: recovered(0, 1)(job) and "replacing" not in job["status"]["memory"]
        )
    assert condition("Healthy")(job)
    assert {name for name, uid in uids(kubelet.pods).items() if uid != before[name]} == {"job-1"}
    assert [name for name, _ in kubelet.born].count("job-1") == 2
