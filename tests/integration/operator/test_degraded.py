"""What is wrong while a job trains is named in the status for as long as replica 0's agent reports it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.kubelet import Kubelet
from tests.integration.operator.conftest import Cluster
from tests.integration.operator.test_lifecycle import of
from tests.integration.operator.test_scope import ADDRESS, agent
from tests.support.predicates import condition

Json = dict[str, Any]


@pytest.mark.usefixtures("operator")
@pytest.mark.long(20)
async def test_slow_or_hung_rank_and_failed_save_are_named_until_they_pass(
    cluster: Cluster, kubelet: Kubelet
):
    calm: Json = {"attempt": 0, "step": 7, "rejoin": True, "slowest": None, "hang": None}
    async with agent(cluster, ADDRESS, calm | {"slowest": {"rank": 1, "replica": 1, "ratio": 2.1}}) as says:
        kubelet.starts = False
        await cluster.submit(hang={"action": "Report"})
        await kubelet.until(lambda pods: set(pods) == {"job-0", "job-1"})
        for name in ("job-1", "job-0"):
            await kubelet.start(name)
        await kubelet.set_status("job-0", {"podIP": ADDRESS, "podIPs": [{"ip": ADDRESS}]})

        job = await cluster.until(condition("Healthy", "False", "Straggler"))
        who = "rank 1 (replica 1) on node node-1"
        slow = f"{who} takes 2.1 times as long as the other ranks for its part of a step"
        assert of(job, "Healthy")["message"] == slow
        assert (await cluster.until_event("Straggler"))["note"] == slow

        says.update({"slowest": None, "hang": {"ranks": [0], "message": "no step for 33 s"}})
        job = await cluster.until(condition("Healthy", "False", "Hang"))
        assert "rank 0 (replica 0) on node node-0 is hung: no step for 33 s" in of(job, "Healthy")["message"]
        assert (await cluster.until_event("Hang"))["note"] == of(job, "Healthy")["message"]
        assert job["status"]["phase"] == "Running"
        assert job["status"]["restarts"]["total"] == 0

        says.update({"hang": None, "saveFailure": "step 20: no space left"})
        job = await cluster.until(condition("Healthy", "False", "SaveFailed"))
        assert of(job, "Healthy")["message"].endswith("can be written: step 20: no space left")
        assert (await cluster.until_event("SaveFailed"))["note"] == of(job, "Healthy")["message"]

        says.update({"saveFailure": None} | calm)
        await cluster.until(condition("Healthy"))
