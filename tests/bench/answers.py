"""Agents of replica 0 that only answer: one HTTP server for all pods of simulated nodes.

The simulated nodes give pods addresses of this machine's loopback network, and the server listens on all of
them; the address that was asked tells the pod. A job does a step a second, so a stored step tells its age.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

from aiohttp import web

from dtj_operator.model import names
from tests.bench.rest import Rest
from tests.bench.rig import JOBS, PODS

CIDR = "127.1.0.1/16"  # of the pods
Json = dict[str, Any]


class Answers:
    """The agents, and the age of what the jobs' statuses say about them.

    polls     answered so far
    oldest_s  age of the oldest progress that the operator replaced since this was last set to 0
    """

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._pods: dict[str, Json] = {}  # by address
        self._stored: dict[str, int] = {}  # step by job
        self.polls = 0
        self.oldest_s = 0.0
        self._changed = asyncio.Event()

    @property
    def step(self) -> int:
        """The step that every job has done by now."""
        return int(time.monotonic() - self._began)

    async def until_written(self, jobs: int) -> None:
        """Wait until the statuses of this many jobs have progress."""
        while len(self._stored) < jobs:
            self._changed.clear()
            await self._changed.wait()

    def age_stored(self) -> float:
        """Return `oldest_s`, or the age of the oldest progress in a status now if that is older."""
        return max(self.oldest_s, self.step - min(self._stored.values()))

    async def answer(self, request: web.Request) -> web.Response:
        """Answer as the agent of the pod that has the address that was asked."""
        assert request.transport is not None
        pod = self._pods.get(request.transport.get_extra_info("sockname")[0])
        if pod is None:
            raise web.HTTPNotFound
        self.polls += 1
        labels = pod["metadata"]["labels"]
        return web.json_response(
            {
                "job": labels[names.JOB_NAME],
                "jobUid": labels[names.JOB_UID],
                "replica": int(labels[names.REPLICA_INDEX]),
                "attempt": int(labels[names.ATTEMPT]),
                "state": "Running",
                "step": self.step,
                "loss": 1.0 / (1 + self.step),
                "samplesPerSecond": 64.0,
            }
        )

    async def follow_pods(self, rest: Rest) -> None:
        """Learn the addresses of the first replicas' pods, forever."""
        async with aclosing(rest.follow(PODS, labelSelector=f"{names.REPLICA_INDEX}=0")) as pods:
            async for pod in pods:
                if address := pod["status"].get("podIP"):
                    self._pods[address] = pod

    async def follow_jobs(self, rest: Rest) -> None:
        """See how old the progress in a status is when the operator replaces it, forever."""
        async with aclosing(rest.follow(JOBS)) as jobs:
            async for job in jobs:
                step = job.get("status", {}).get("progress", {}).get("step")
                if step is None:
                    continue
                stored = self._stored.get(job["metadata"]["name"], step)
                if step != stored:
                    self.oldest_s = max(self.oldest_s, self.step - stored)
                self._stored[job["metadata"]["name"]] = step
                self._changed.set()


@asynccontextmanager
async def answering(rest: Rest) -> AsyncIterator[Answers]:
    """Let all agents answer until the block ends."""
    answers = Answers()
    app = web.Application()
    app.router.add_get("/status", answers.answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "0.0.0.0", names.AGENT_PORT).start()
    following = [asyncio.create_task(each(rest)) for each in (answers.follow_pods, answers.follow_jobs)]
    try:
        yield answers
        for task in following:
            if task.done():  # what it learned since is missing
                task.result()
    finally:
        for task in following:
            task.cancel()
        await asyncio.gather(*following, return_exceptions=True)
        await runner.cleanup()
