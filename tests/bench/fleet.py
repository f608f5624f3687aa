"""1,000 running jobs of eight pods: memory, requests at rest, reaction to failures, a killed operator.

With agents that do not answer, and with agents that do. The audit log of the API server times the reactions.
DTJ_FLEET_JOBS sets another number of jobs.
"""

from __future__ import annotations

import asyncio
import os
import random
import statistics
import sys
import time
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from dtj_operator.app import PROGRESS_WRITES_PER_S
from tests.bench import answers, report, rig
from tests.bench.answers import Answers
from tests.bench.reaction import STAGES, Reaction, reactions
from tests.bench.rest import Rest
from tests.bench.rig import JOBS, PODS, Rig
from tests.bench.usage import Usage, usage
from tests.cluster import kwok
from tests.integration.operator import process
from tests.integration.operator.process import Operator

REPLICAS = 8
FEW, MANY = 10, int(os.environ.get("DTJ_FLEET_JOBS", "1000"))
REST_S = 60.0
LEAST_INTERVAL_S = 60.0  # between two writes of a job's progress; longer with more jobs
CALM_S = 15.0  # idle if it writes nothing for so long; longer than it delays writes of mere counts
FAILURES, PAUSE_S = 200, 0.2
SLOW = 10  # of them, whose stages are shown
AUDITED_S = 1.0  # until the audit log has the last request
REPLACED_S = 120.0  # a replacement that takes longer will not come
KILLS = 3
SCHEDULER_QPS = 1000  # at its default rate 8,000 pods would take it three minutes
Json = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Minute:
    """A minute in which nothing happened."""

    used: Usage
    cpu_s: float
    requests: int
    writes: int


HEAD = (
    "memory, MiB",
    "CPU at rest, s a minute",
    "requests at rest, a minute",
    "writes at rest, a minute",
    "rank failed -> replacement created, p50, s",
    "p99, s",
)


def main() -> None:
    """Measure and write the sections `fleet`, `fleet agents` and `restart` of the page."""
    asyncio.run(measure())


async def measure() -> None:
    """Fill the cluster in two steps, measure after each, then let the agents answer and measure again."""
    nodes = MANY * REPLICAS // 1000 + 2
    async with rig.running(nodes=nodes, cidr=answers.CIDR, scheduler_qps=SCHEDULER_QPS) as bench:
        async with process.running(bench.plane, rate=rig.REQUESTS_PER_S) as operator:
            rows = []
            for begin, end in ((0, FEW), (FEW, MANY)):
                filled_s = await fill(bench.rest, range(begin, end))
                print(f"{end} jobs run after {filled_s:.0f} s", file=sys.stderr, flush=True)
                await calm(bench)
                cells, before = await row(bench, operator, end)
                rows.append(cells)
            silent = ["no agent answers", *rows[-1], "", ""]
            async with answers.answering(bench.rest) as agents:
                answered, after = await with_agents(bench, operator, agents)
            await operator.kill()
        head = ["running jobs x 8 pods", *HEAD]
        report.write("fleet", report.table(head, [[FEW, *rows[0]], [MANY, *rows[1]]]))
        head = [f"{MANY} jobs x 8 pods", *HEAD, "oldest progress, s", "stated interval, s"]
        report.write("fleet agents", report.table(head, [silent, answered]))
        report.write("fleet stages", stages(before, after))
        back = [await killed(bench) for _ in range(KILLS)]
        await no_duplicates(bench.rest)
        head = [
            "what was killed",
            "times",
            "SIGKILL -> replacement of a rank that failed meanwhile created, s",
        ]
        name = f"the only operator, restarted at once, {MANY} jobs"
        report.write("restart", report.table(head, [[name, KILLS, report.seconds(back)]]))


async def with_agents(bench: Rig, operator: Operator, agents: Answers) -> tuple[list[object], list[Reaction]]:
    """Return the same for agents that answer, with the age of the oldest progress in a status."""
    interval_s = max(LEAST_INTERVAL_S, MANY / PROGRESS_WRITES_PER_S)
    await agents.until_written(MANY)
    await asyncio.sleep(interval_s)  # until the first writes are no longer a burst
    agents.oldest_s = 0.0
    began = time.monotonic()
    cells, found = await row(bench, operator, MANY)
    await asyncio.sleep(max(0.0, began + 2 * interval_s - time.monotonic()))
    return ["every agent answers", *cells, agents.age_stored(), f"{interval_s:.0f}"], found


def stages(silent: Sequence[Reaction], answered: Sequence[Reaction]) -> str:
    """Return a table of what the reactions consisted of."""
    slow = f"mean of the slowest {SLOW}, s"
    head = ["stage", "no agent answers: median, s", slow, "every agent answers: median, s", slow]
    rows: list[list[object]] = [[stage] for stage in STAGES]
    for found in (silent, answered):
        slowest = sorted(found, key=lambda reaction: reaction.total_s)[-SLOW:]
        for number, cells in enumerate(rows):
            cells.append(f"{statistics.median(each.stages[number] for each in found):.3f}")
            cells.append(f"{statistics.mean(each.stages[number] for each in slowest):.3f}")
    return report.table(head, rows)


async def row(bench: Rig, operator: Operator, jobs: int) -> tuple[list[object], list[Reaction]]:
    """Return the cost of these jobs at rest, and how fast the operator reacts to failures."""
    quiet = await at_rest(bench, operator)
    found = await react(bench, jobs)
    took = [reaction.total_s for reaction in found]
    return [
        f"{quiet.used.resident_mib:.0f}",
        f"{quiet.cpu_s:.1f}",
        quiet.requests,
        quiet.writes,
        f"{quantile(took, 0.5):.2f}",
        f"{quantile(took, 0.99):.2f}",
    ], found


async def fill(rest: Rest, numbers: range) -> float:
    """Post jobs and return the seconds until all of them run."""
    began = time.monotonic()
    version = (await rest.list(JOBS))["metadata"]["resourceVersion"]
    posting = asyncio.create_task(rest.post_all((JOBS, job(number)) for number in numbers))
    missing = {name(number) for number in numbers}
    async with aclosing(rest.watch(JOBS, version)) as events:
        async for _, seen in events:
            if seen.get("status", {}).get("phase") == "Running":
                missing.discard(seen["metadata"]["name"])
            if not missing:
                break
    await posting
    return time.monotonic() - began


async def calm(bench: Rig) -> None:
    """Wait until the operator has written nothing for a while."""
    asked = bench.requests()
    while True:
        await asyncio.sleep(CALM_S)
        if not rig.writes(asked.since()):
            return
        asked = bench.requests()


async def at_rest(bench: Rig, operator: Operator) -> Minute:
    """Measure one minute at rest."""
    asked, before = bench.requests(), await usage(operator)
    await asyncio.sleep(REST_S)
    after, counted = await usage(operator), asked.since()
    return Minute(
        used=after,
        cpu_s=after.cpu_s - before.cpu_s,
        requests=counted.total(),
        writes=rig.writes(counted),
    )


async def react(bench: Rig, jobs: int) -> list[Reaction]:
    """Fail ranks of different jobs one after the other; return how the operator reacted to each."""
    chance = random.Random(jobs)
    few = jobs < FAILURES  # then never two failures of one job at the same time
    picked = (
        [chance.randrange(jobs) for _ in range(2 * jobs)] if few else chance.sample(range(jobs), FAILURES)
    )
    _, offset = bench.plane.audit_from(0)
    async with asyncio.TaskGroup() as group:
        for number in picked:
            task = group.create_task(replaced(bench.rest, number, chance.randrange(REPLICAS)))
            if few:
                await task
            else:
                await asyncio.sleep(PAUSE_S)
    await asyncio.sleep(AUDITED_S)
    return reactions(bench.plane.audit_from(offset)[0])


async def replaced(rest: Rest, number: int, index: int) -> None:
    """Fail a rank and wait until its replacement is created."""
    _, old, version = await fail(rest, f"{name(number)}-{index}")
    await reborn(rest, number, index, old, version)


async def fail(rest: Rest, pod: str) -> tuple[float, str, str]:
    """Fail a pod's container; return the time of that write, the pod's uid, and the version to watch from."""
    ended = {
        "exitCode": 1,
        "reason": "Error",
        "finishedAt": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    container = {"name": "trainer", "image": "bench", "imageID": "", "ready": False, "restartCount": 0}
    status = {"phase": "Failed", "containerStatuses": [container | {"state": {"terminated": ended}}]}
    written = await rest.patch(f"{PODS}/{pod}/status", {"status": status})
    return time.monotonic(), written["metadata"]["uid"], written["metadata"]["resourceVersion"]


async def reborn(rest: Rest, number: int, index: int, old: str, version: str) -> float:
    """Return the monotonic time at which a watch shows the replacement of this pod.

    Raises RuntimeError, with the job's status, if there is none in time.
    """
    pod = f"{name(number)}-{index}"
    try:
        async with (
            asyncio.timeout(REPLACED_S),
            aclosing(rest.watch(PODS, version, fieldSelector=f"metadata.name={pod}")) as events,
        ):
            async for kind, seen in events:
                if kind == "ADDED" and seen["metadata"]["uid"] != old:
                    break
    except TimeoutError as error:
        status = (await rest.list(f"{JOBS}/{name(number)}"))["status"]
        raise RuntimeError(
            f"pod {pod} failed and was not replaced within {REPLACED_S:.0f} s; its job: {status}"
        ) from error
    return time.monotonic()


async def killed(bench: Rig) -> float:
    """Kill the operator, fail a rank meanwhile, start another operator; return when that has reacted."""
    async with process.running(bench.plane, rate=rig.REQUESTS_PER_S) as operator:
        await calm(bench)
        began = time.monotonic()
        await operator.kill()
    number = random.randrange(MANY)
    _, old, version = await fail(bench.rest, f"{name(number)}-0")
    async with process.running(bench.plane, rate=rig.REQUESTS_PER_S):
        back = await reborn(bench.rest, number, 0, old, version)
        await calm(bench)
    return back - began


async def no_duplicates(rest: Rest) -> None:
    """Raise if a job does not have exactly its pods."""
    pods = (await rest.list(PODS))["items"]
    if len(pods) != MANY * REPLICAS:
        raise RuntimeError(f"{MANY} jobs x {REPLICAS} have {len(pods)} pods")


def quantile(samples: Sequence[float], share: float) -> float:
    """Return the smallest sample that this share of them does not exceed."""
    ordered = sorted(samples)
    return ordered[max(0, -int(-share * len(ordered) // 1) - 1)]


def name(number: int) -> str:
    """Return the name of a job."""
    return f"fleet-{number}"


def job(number: int) -> Json:
    """Return a job whose replicas are replaced one by one and without a pause."""
    container = {"name": "trainer", "image": "bench", "resources": {"requests": {"cpu": "10m"}}}
    return {
        "apiVersion": "dtj.dev/v1alpha1",
        "kind": "DistributedTrainingJob",
        "metadata": {"name": name(number)},
        "spec": {
            "replicas": REPLICAS,
            "recovery": {
                "scope": "Replica",
                "backoffSeconds": 0,
                "maxRestarts": 1000,
                "maxRestartsWithoutProgress": 1000,  # every failure here is the same
            },
            "template": {"spec": {"containers": [container], **kwok.PLACEMENT}},
        },
    }
