"""API requests of one job: the operator's requests from submission to deletion, by verb."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import aclosing
from typing import Any

from tests.bench import report, rig
from tests.bench.creation import Load
from tests.bench.rest import Rest
from tests.bench.rig import JOBS, PODS

LOAD = Load(jobs=50, replicas=4)
CALM_S = 12.0  # longer than the operator delays writes of mere counts


def main() -> None:
    """Measure and write the section `life` of the page."""
    lived, deleted = asyncio.run(measure())
    rows = [
        [verb, resource, *(f"{counted[verb, resource] / LOAD.jobs:.2f}" for counted in (lived, deleted))]
        for verb, resource in sorted(lived | deleted)
        if verb != "watch"
    ]
    totals = [f"**{rig.writes(counted) / LOAD.jobs:.2f}**" for counted in (lived, deleted)]
    rows.append(["**writes**", f"of a job of {LOAD.replicas} pods", *totals])
    report.write(
        "life", report.table(["verb", "resource", "until it has succeeded", "when it is deleted"], rows)
    )


async def measure() -> tuple[Counter[tuple[str, str]], Counter[tuple[str, str]]]:
    """Run some jobs without a fault, then delete them; return the requests of both phases."""
    async with rig.running() as bench, bench.operator():
        await asyncio.sleep(CALM_S)  # exclude the operator's own requests at start-up
        asked, rest = bench.requests(), bench.rest
        await rest.post_all(LOAD.manifests())
        await until_phase(rest, "Running")
        await asyncio.sleep(CALM_S)
        for pod in (await rest.list(PODS))["items"]:
            await succeed(rest, pod["metadata"]["name"])
        await until_phase(rest, "Succeeded")
        await asyncio.sleep(CALM_S)
        lived, asked = asked.since(), bench.requests()
        await rest.delete_each(JOBS, [job["metadata"]["name"] for job in (await rest.list(JOBS))["items"]])
        await rest.until_empty(PODS)
        await asyncio.sleep(CALM_S)
        return lived, asked.since()


async def until_phase(rest: Rest, phase: str) -> None:
    """Wait until all jobs exist and are in this phase."""
    listed = await rest.list(JOBS)
    phases: dict[str, Any] = {
        job["metadata"]["name"]: job.get("status", {}).get("phase") for job in listed["items"]
    }
    async with aclosing(rest.watch(JOBS, listed["metadata"]["resourceVersion"])) as events:
        while set(phases.values()) != {phase} or len(phases) < LOAD.jobs:
            _, job = await anext(events)
            phases |= [phase_of(job)]


def phase_of(job: dict[str, Any]) -> tuple[str, str | None]:
    """Return a job's name and phase."""
    return job["metadata"]["name"], job.get("status", {}).get("phase")


async def succeed(rest: Rest, pod: str) -> None:
    """Let a pod's container succeed."""
    ended = {"exitCode": 0, "reason": "Completed", "finishedAt": "2026-01-01T00:00:00Z"}
    container = {"name": "trainer", "image": "bench", "imageID": "", "ready": False, "restartCount": 0}
    status = {"phase": "Succeeded", "containerStatuses": [container | {"state": {"terminated": ended}}]}
    await rest.patch(f"{PODS}/{pod}/status", {"status": status})
