"""A real Prometheus scrapes a real operator and a real agent: what rules and dashboards find."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
from aiohttp import web

from dtj import contract
from dtj.agent.report.status_server import metrics
from tests.chaos.witness import Witness
from tests.cluster import debian
from tests.docs.blocks import ROOT
from tests.integration.api import WITHIN_S
from tests.integration.chart.conftest import CHART
from tests.integration.controlplane import ControlPlane
from tests.integration.kubelet import Kubelet
from tests.integration.operator import process
from tests.integration.operator.conftest import Cluster
from tests.integration.operator.test_scope import ADDRESS, agent, recovered
from tests.support.commands import commands, warm
from tests.support.faultproxy import Fault, FaultProxy, calling
from tests.support.ports import free_port
from tests.support.predicates import condition, phase

Json = dict[str, Any]
PROGRAM = ROOT / "tests/process/dtj/programs/small.py"
ALERTS = CHART / "files/alerts.yaml"
GPU_POD: Json = {
    "spec": {
        "containers": [
            {"name": "trainer", "image": "trainer:1", "resources": {"limits": {"nvidia.com/gpu": 1}}}
        ],
        "terminationGracePeriodSeconds": 1,
    }
}
# What an agent says that has trained and healed one rank.
SAYS: Json = {
    "attempt": 0,
    "step": 7,
    "rejoin": True,
    "restarts": {"inPlace": 1},
    "ledger": {"productive": 90.0, "startup": 5.0, "lost": 1.0, "recovering": 4.0},
    "failure": {"rank": 1, "replica": 1, "reason": "Signal", "exitCode": 137, "signal": "SIGKILL"},
}


@pytest.fixture
def agent_port(tmp_path: Path) -> Iterator[int]:
    """Start an agent with one rank that trains until the test ends; return the port of its metrics."""
    port, folder = free_port(), tmp_path / "run"
    folder.mkdir()
    with commands(warm(), folder) as start:
        start(
            *("run", "--nproc", 1, "--log-every", 2, "--port", port, PROGRAM),
            **{"OUT": folder, "PLAIN": 1, "STEPS": 1_000_000, "STEP_S": 0.02},
        )
        yield port


@contextlib.asynccontextmanager
async def slow_agent() -> AsyncIterator[int]:
    """Serve the metrics of an agent that names a straggler; yield the port."""
    slowest = {"rank": 1, "replica": 1, "ratio": 2.0}
    document = dict.fromkeys(contract.STATUS_FIELDS) | {"slowest": slowest, "ranks": []}

    async def answer(_: web.Request) -> web.Response:
        return web.Response(text=metrics(document))

    app, port = web.Application(), free_port()
    app.router.add_get("/metrics", answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    try:
        yield port
    finally:
        await runner.cleanup()


class Prometheus:
    """A running Prometheus."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    async def get(self, path: str, **query: str) -> Any:
        """Return the data of an answer; None if it does not listen yet."""
        with contextlib.suppress(aiohttp.ClientError):
            async with self._session.get(f"/api/v1/{path}", params=query) as answer:
                found = await answer.json()
                assert found["status"] == "success", found
                return found["data"]
        return None

    async def without_data(self, expressions: dict[str, str]) -> set[str]:
        """Return the names of the expressions that find nothing."""
        found = {name: await self.get("query", query=text) for name, text in expressions.items()}
        return {name for name, data in found.items() if data is None or not data["result"]}

    async def until_without_data(self, expressions: dict[str, str], expected: set[str]) -> None:
        """Wait until exactly these expressions find nothing."""
        deadline = time.monotonic() + WITHIN_S
        while (found := await self.without_data(expressions)) != expected:
            assert time.monotonic() < deadline, f"without data: {found}, expected: {expected}"
            await asyncio.sleep(0.5)  # until the next scrape


@contextlib.asynccontextmanager
async def scraping(folder: Path, targets: list[Json]) -> AsyncIterator[Prometheus]:
    """Run a Prometheus with our alerts that scrapes these targets every second."""
    port, config = free_port(), folder / "prometheus.yaml"
    jobs = [
        {"job_name": f"target-{i}", "honor_labels": True}
        | (each if "file_sd_configs" in each else {"static_configs": [each]})
        for i, each in enumerate(targets)
    ]
    config.write_text(
        json.dumps(
            {
                "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
                "rule_files": [str(ALERTS)],
                "scrape_configs": jobs,
            }
        )
    )
    program = debian.program("prometheus", package="prometheus")
    flags = (
        f"--config.file={config}",
        f"--storage.tsdb.path={folder}/tsdb",
        f"--web.listen-address=127.0.0.1:{port}",
    )
    with (folder / "prometheus.log").open("wb") as log:
        running = await asyncio.create_subprocess_exec(program, *flags, stdout=log, stderr=log)
    try:
        async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:
            yield Prometheus(session)
    finally:
        running.kill()
        await running.wait()


def panels() -> dict[str, str]:
    """Return the expressions of both dashboards by the titles of their panels."""
    dashboards = yaml.safe_load((CHART / "files/dashboards.yaml").read_text()).values()
    return {
        title: text.replace("$__rate_interval", "5m").replace("$namespace", ".*")
        for dashboard in dashboards
        for title, _, _, text in dashboard["panels"]
    }


def documented(heading: str) -> set[str]:
    """Return what docs/operations.md lists in the sentence that begins with these words."""
    page = " ".join((ROOT / "docs/operations.md").read_text().split())
    (sentence,) = re.findall(rf"{re.escape(heading)}([^.]*)\.", page)
    return set(re.findall(r"\*([^*]+)\*", sentence))


@pytest.mark.timeout(600)  # it imports torch, and starts Prometheus besides the control plane
async def test_every_panel_and_alert_finds_data(
    granted: ControlPlane,
    cluster: Cluster,
    kubelet: Kubelet,
    witness: Witness,
    agent_port: int,
    tmp_path: Path,
):
    port = free_port()  # also of an operator that is restarted
    async with (
        FaultProxy(granted.url, granted.tls()).serving() as proxy,
        process.kept(granted, watch=cluster.namespace, poll_s=1, server=proxy.url, metrics_port=port),
        agent(cluster, ADDRESS, SAYS),
        slow_agent() as slow_port,
        scraping(
            tmp_path,
            [
                {
                    "targets": [f"127.0.0.1:{port}"],
                    "labels": {"pod": "operator-0", "namespace": "dtj-system"},
                },
                {
                    "targets": [f"127.0.0.1:{agent_port}"],
                    "labels": {"namespace": "team", "dtj_job": "digits", "dtj_replica": "0"},
                },
                {"file_sd_configs": [{"files": [str(tmp_path / "slow.json")], "refresh_interval": "1s"}]},
            ],
        ) as prometheus,
    ):
        await cluster.submit(template=GPU_POD)
        await kubelet.until_running("job-0", "job-1")
        await kubelet.set_status("job-0", {"podIP": ADDRESS, "podIPs": [{"ip": ADDRESS}]})
        await cluster.until(lambda job: job["status"].get("goodput", {}).get("productiveSeconds") == 90)
        await kubelet.finish("job-1", 1)
        await cluster.until(recovered(2))
        await cluster.submit("short")
        await kubelet.until_running("job-0", "job-1", "short-0", "short-1")
        for name in ("short-0", "short-1"):
            await kubelet.finish(name)
        await cluster.until(phase("Succeeded"), "short")

        empty = documented("These panels are empty until something goes wrong:")
        await prometheus.until_without_data(panels(), empty)

        kubelet.starts = False
        proxy.inject(Fault(calling("PATCH", "status"), 403), Fault(calling("POST", "events"), 403))
        labels = {"namespace": "team", "dtj_job": "slow", "dtj_replica": "0"}
        (tmp_path / "slow.json").write_text(
            json.dumps([{"targets": [f"127.0.0.1:{slow_port}"], "labels": labels}])
        )
        await cluster.submit("stuck")
        await kubelet.until(lambda pods: "stuck-1" in pods)
        nowhere = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no node"}
        await kubelet.set_status("stuck-1", {"conditions": [nowhere]})
        await cluster.until(condition("PodsReady", "False", "Unschedulable"), "stuck")
        await prometheus.until_without_data(panels(), set())

        (group,) = (await prometheus.get("rules"))["groups"]
        assert {rule["name"]: rule["lastError"] for rule in group["rules"] if rule.get("lastError")} == {}
        assert {rule["name"] for rule in group["rules"] if rule["state"] == "firing"} == set()
        used = set(re.findall(r"\bdtj_\w+", ALERTS.read_text()))
        names = set(await prometheus.get("label/__name__/values"))
        assert used - names == set()
