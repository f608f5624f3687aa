"""Objects that are as large and as deeply nested as the API server lets them be stop no other job."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator

from tests.integration.controlplane import ControlPlane
from tests.integration.kubelet import Kubelet
from tests.integration.operator import process
from tests.integration.operator.conftest import Cluster, job
from tests.support.predicates import phase

DEEPEST = 9_991  # of a custom resource that the API server still can list
LARGE = {
    "metadata": {"name": "large", "labels": {"dtj.dev/job-name": "large"}},
    "spec": {"containers": [{"name": "a", "image": "a", "env": [{"name": "A", "value": "<" * 800_000}]}]},
}


@contextlib.asynccontextmanager
async def deep_job(cluster: Cluster) -> AsyncIterator[None]:
    """Create a job whose affinity has DEEPEST levels; delete it at the end: no test could list the jobs."""
    body = job("deep")
    body["spec"]["template"]["spec"]["affinity"] = "HERE"
    nested = '{"a":' * DEEPEST + "1" + "}" * DEEPEST
    await cluster.api.create_text(cluster.jobs, json.dumps(body).replace('"HERE"', nested))
    try:
        yield
    finally:
        await cluster.api.delete(f"{cluster.jobs}/deep")


async def test_deep_job_and_large_pod_stop_no_other_job(
    granted: ControlPlane, cluster: Cluster, kubelet: Kubelet
):
    async with process.running(granted, watch=cluster.namespace) as operator:
        await cluster.submit("before")
        await cluster.until(phase("Running"), "before")
        async with deep_job(cluster):
            await cluster.api.create(cluster.pods, LARGE)
            event = await cluster.until_event("TooDeep")
            assert event["regarding"]["name"] == "deep"
            await kubelet.finish("before-1", 1)
            await cluster.until(lambda job: phase("Running")(job) and job["status"]["attempt"] == 1, "before")
            await operator.stop()
            async with process.running(granted, watch=cluster.namespace) as successor:
                await cluster.submit("after")
                await cluster.until(phase("Running"), "after")
                await kubelet.finish("before-1", 1)
                await cluster.until(
                    lambda job: phase("Running")(job) and job["status"]["attempt"] == 2, "before"
                )
                assert successor.process.returncode is None
        for log in (operator.log, successor.log):
            assert "kopf failed" not in log.read_text()
            assert "relisting" not in log.read_text()
