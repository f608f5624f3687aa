"""[S] A standby takes over thousands of jobs from a leader that was killed, with a slow API server.

The API server is simulated (see `stream.py`): each of its answers but watch events takes a fifth of a second,
so that the new leader needs minutes to reconcile all jobs. DTJ_TAKEOVER_JOBS sets another number of jobs.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import aiohttp

from tests.bench import report, rig
from tests.bench.stream import Cluster, Pretended, calm, serving
from tests.integration.controlplane import ControlPlane
from tests.integration.operator import process
from tests.integration.operator.process import Operator

JOBS = int(os.environ.get("DTJ_TAKEOVER_JOBS", "10000"))
LATE_S = 0.2
FAILURES = 20  # ranks that fail while no operator leads, and as many afterwards
AFTER_S = 1.0  # how long after the Lease is won the others fail
PROBE_EVERY_S, PROBE_TIMEOUT_S = 0.2, 5.0  # more often than the chart's probe, and its timeout


@dataclass
class Probes:
    """Requests to /healthz.

    took_s  seconds of each
    failed  number of those that timed out, found no server or were answered with an error
    """

    took_s: list[float] = field(default_factory=list)
    failed: int = 0

    async def run(self, operator: Operator) -> None:
        """Ask again and again, forever."""
        url = f"http://127.0.0.1:{operator.health_port}/healthz"
        timeout = aiohttp.ClientTimeout(total=PROBE_TIMEOUT_S)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            while True:
                began = time.monotonic()
                try:
                    async with session.get(url) as answer:
                        self.failed += answer.status != 200
                except (TimeoutError, aiohttp.ClientError):
                    self.failed += 1
                self.took_s.append(time.monotonic() - began)
                await asyncio.sleep(PROBE_EVERY_S)


def main() -> None:
    """Measure and write the section `takeover` of the page."""
    head = [
        "jobs x pods",
        "leader killed -> Lease won, s",
        "Lease won -> first replacement of a rank that failed before, s",
        f"the last of {FAILURES}, s",
        f"rank failed {AFTER_S:.0f} s after that -> replacement, slowest of {FAILURES}, s",
        "Lease won -> every job read, s",
        "/healthz failed, of",
        "slowest, s",
    ]
    report.write("takeover", report.table(head, [asyncio.run(measure())]))


async def measure() -> list[object]:
    """Return the row of the table."""
    with tempfile.TemporaryDirectory(prefix="dtj-bench-") as folder:
        async with serving(Cluster(jobs=JOBS, replicas=1)) as cluster:
            plane = cast(ControlPlane, Pretended(folder=Path(folder), url=cluster.url))
            async with process.running(plane, identity="leader", rate=rig.REQUESTS_PER_S) as leader:
                await cluster.until(lambda: len(cluster.statuses) == JOBS, within_s=1200)
                async with process.running(plane, identity="standby", rate=rig.REQUESTS_PER_S) as standby:
                    await calm(cluster, leader)
                    return await take_over(cluster, leader, standby)


async def take_over(cluster: Cluster, leader: Operator, standby: Operator) -> list[object]:
    """Kill the leader and follow what the standby does."""
    cluster.late_s = LATE_S
    killed = time.monotonic()
    await leader.kill()
    cluster.read.clear()
    before = [pod(number) for number in range(FAILURES)]
    after = [pod(JOBS - 1 - number) for number in range(FAILURES)]
    for name in before:
        cluster.fail(name)
    await cluster.until(lambda: "standby" in cluster.led_since)
    won, probes = cluster.led_since["standby"], Probes()
    probing = asyncio.create_task(probes.run(standby))
    await asyncio.sleep(AFTER_S)
    failed = {name: cluster.fail(name) for name in after}
    await cluster.until(lambda: {*before, *after} <= cluster.reborn.keys(), within_s=600)
    replaced = sorted(cluster.reborn[name] - won for name in before)
    late = max(cluster.reborn[name] - moment for name, moment in failed.items())
    await cluster.until(lambda: len(cluster.read) == JOBS, within_s=600)
    done = time.monotonic()
    probing.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await probing
    return [
        f"{JOBS} x 1",
        f"{won - killed:.1f}",
        f"{replaced[0]:.1f}",
        f"{replaced[-1]:.1f}",
        f"{late:.1f}",
        f"{done - won:.0f}",
        f"{probes.failed} of {len(probes.took_s)}",
        f"{max(probes.took_s):.2f}",
    ]


def pod(number: int) -> str:
    """Return the name of a job's only pod."""
    return f"sim-{number:05}-0"
