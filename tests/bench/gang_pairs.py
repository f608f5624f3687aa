"""Pairs of jobs that do not fit at the same time, with faults: is one of them ever placed in part only?

Two cases are counted apart: an attempt starts with some of its pods only, which is what gangs prevent, or an
attempt that was complete has lost a pod, and waits for the new one.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

from tests.bench.gang_rig import Json, Pool, Rig, State
from tests.integration.api import JOBS, NeverHappenedError
from tests.integration.kubelet import runs
from tests.support.predicates import phase

REPLICAS, CAPACITY = 8, 12
AT_ONCE = 25  # pairs, each in a namespace and on a node of its own
PARTIAL_S = 5.0
STUCK_S = 30.0  # the scheduler itself waits for up to 10 s between two tries
SAMPLED_EVERY_S = 0.1
FAULTS_A_JOB = 2
CRASH, DELETE, FINISH_THEN_CRASH = "crash", "deletion", "crash after another replica has finished"
SCOPES = ("Replica", "Job")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What happens to a job while it runs."""

    scope: str
    faults: tuple[str, ...]


@dataclass(eq=False)
class Partial:
    """Jobs that were placed in part.

    jobs       number of jobs for which it lasted longer than PARTIAL_S
    longest_s  the longest time
    """

    jobs: int = 0
    longest_s: float = 0.0

    def add(self, other: Partial) -> None:
        """Add what was seen of other jobs."""
        self.jobs += other.jobs
        self.longest_s = max(self.longest_s, other.longest_s)


@dataclass
class Outcome:
    """What was seen of one pair, or of several.

    stuck      number of pairs in which no job ran whole for STUCK_S
    starting   jobs placed in part whose attempt had never been complete
    replacing  jobs placed in part whose attempt had been complete
    faults     (what, scope) -> number
    """

    stuck: int = 0
    starting: Partial = field(default_factory=Partial)
    replacing: Partial = field(default_factory=Partial)
    faults: Counter[tuple[str, str]] = field(default_factory=Counter)

    def add(self, other: Outcome) -> None:
        """Add what was seen of other pairs."""
        self.stuck += other.stuck
        self.starting.add(other.starting)
        self.replacing.add(other.replacing)
        self.faults += other.faults


class Spells:
    """For how long one job is placed in part, before and after its attempt was complete."""

    def __init__(self, outcome: Outcome) -> None:
        self._outcome = outcome
        self._complete: set[str] = set()  # attempts
        self._current: Partial | None = None
        self._since = 0.0
        self._late: set[Partial] = set()

    def see(self, state: State, now: float) -> None:
        """Note the state at a moment of a monotonic clock, in seconds."""
        if state.complete:
            self._complete |= state.attempts
        was, self._current = self._current, self._kind(state)
        if self._current is None:
            return
        if self._current is not was:
            self._since = now
        self._current.longest_s = max(self._current.longest_s, now - self._since)
        if now - self._since > PARTIAL_S and self._current not in self._late:
            self._late.add(self._current)
            self._current.jobs += 1

    def _kind(self, state: State) -> Partial | None:
        if not state.partial:
            return None
        return self._outcome.replacing if state.attempts <= self._complete else self._outcome.starting


def draw(seed: int) -> dict[str, Plan]:
    """Return the plans of the two jobs of a pair."""
    chosen = random.Random(seed)
    faults = (CRASH, DELETE, FINISH_THEN_CRASH)
    return {
        job: Plan(scope=chosen.choice(SCOPES), faults=tuple(chosen.choices(faults, k=FAULTS_A_JOB)))
        for job in ("a", "b")
    }


async def measure(rig: Rig, gang: str, pairs: int) -> Outcome:
    """Try a number of pairs."""
    found = Outcome()
    for first in range(0, pairs, AT_ONCE):
        seeds = range(first, min(first + AT_ONCE, pairs))
        for outcome in await asyncio.gather(*(_pair(rig, gang, seed) for seed in seeds)):
            found.add(outcome)
        print(f"gang {gang}: {seeds.stop} pairs, {found}", flush=True)
    return found


async def _pair(rig: Rig, gang: str, seed: int) -> Outcome:
    async with rig.pool(f"pair-{gang.lower()}-{seed}", nodes=1, capacity=CAPACITY) as pool:
        return await Pair(pool, draw(seed), seed).run(gang)


class Pair:
    """Two jobs of which only one fits."""

    def __init__(self, pool: Pool, plans: dict[str, Plan], seed: int) -> None:
        self._pool, self._plans, self._kubelet = pool, plans, pool.kubelet
        self._chosen, self._outcome = random.Random(f"replicas of {seed}"), Outcome()
        self._left = {job: list(plan.faults) for job, plan in plans.items()}
        self._spells = {job: Spells(self._outcome) for job in plans}

    async def run(self, gang: str) -> Outcome:
        """Run both jobs to their ends, with their faults."""
        async with self._sampling():
            await asyncio.gather(
                *(
                    self._pool.submit(job, replicas=REPLICAS, gang=gang, scope=plan.scope)
                    for job, plan in self._plans.items()
                )
            )
            try:
                while self._left:
                    await self._disturb(await self._next())
            except NeverHappenedError:
                self._outcome.stuck = 1
        if not self._outcome.stuck:
            for job in self._plans:
                path = f"{JOBS.format(self._pool.name)}/{job}"
                await self._pool.api.until(path, phase("Succeeded"))
        return self._outcome

    async def _next(self) -> str:
        """Wait until a job runs whole that has not ended yet."""

        def whole(_pods: dict[str, Json]) -> bool:
            return any(self._pool.state(job, REPLICAS).whole for job in self._left)

        await self._kubelet.until(whole, within_s=STUCK_S)
        self._look()  # what follows may come before the next sample
        return next(job for job in self._left if self._pool.state(job, REPLICAS).whole)

    async def _disturb(self, job: str) -> None:
        """Do the next thing of the job's plan; the last one is that its replicas finish."""
        if not self._left[job]:
            del self._left[job]
            await self._pool.finish(job, REPLICAS)
            return
        fault = self._left[job].pop(0)
        self._outcome.faults[fault, self._plans[job].scope] += 1
        running = [i for i in range(REPLICAS) if self._runs(f"{job}-{i}")]
        victim, other = (f"{job}-{i}" for i in self._chosen.sample(running, 2))
        uid = self._kubelet.pods[victim]["metadata"]["uid"]
        if fault == FINISH_THEN_CRASH:
            await self._kubelet.finish(other)
        if fault == DELETE:
            await self._pool.api.delete(f"/api/v1/namespaces/{self._pool.name}/pods/{victim}")
        else:
            await self._kubelet.finish(victim, 1)
        await self._kubelet.until(
            lambda pods: victim in pods and pods[victim]["metadata"]["uid"] != uid, within_s=STUCK_S
        )

    def _runs(self, name: str) -> bool:
        return runs(self._kubelet.pods[name])

    @contextlib.asynccontextmanager
    async def _sampling(self) -> AsyncIterator[None]:
        """Note for how long each job is placed in part."""
        task = asyncio.create_task(self._sample())
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _sample(self) -> None:
        while True:
            self._look()
            await asyncio.sleep(SAMPLED_EVERY_S)

    def _look(self) -> None:
        for job, spells in self._spells.items():
            spells.see(self._pool.state(job, REPLICAS), time.monotonic())


def row(name: str, pairs: int, found: Outcome) -> Sequence[object]:
    """Return a line of the table."""
    scopes = Counter[str]()
    for (_, scope), number in found.faults.items():
        scopes[scope] += number
    return [
        name,
        pairs,
        scopes["Replica"],
        scopes["Job"],
        found.stuck,
        found.starting.jobs,
        f"{found.starting.longest_s:.1f}",
        found.replacing.jobs,
        f"{found.replacing.longest_s:.1f}",
    ]


HEAD = [
    f"two jobs of {REPLICAS}, capacity {CAPACITY}",
    "pairs",
    "replicas replaced",
    "whole restarts",
    "dead-locks",
    f"jobs half started for more than {PARTIAL_S:.0f} s",
    "longest, s",
    f"jobs that lacked a replaced pod for more than {PARTIAL_S:.0f} s",
    "longest, s",
]
