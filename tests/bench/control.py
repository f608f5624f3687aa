"""Two hours in which nothing is wrong but much is slow: how many false alarms about hangs are there?

Several jobs run at the same time, with two agents each, as two pods would run them, and default hang
settings. The ranks do what `control_plan` says; then one of them is really stopped, and the agents have to
find that. The ranks mostly sleep, so other work can run on the machine; its noise is part of the trial.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from random import Random
from typing import Any

from tests.bench import report
from tests.bench.control_agents import AGENTS, Pods, pods
from tests.bench.control_plan import KINDS, START_UP

SECONDS = float(os.environ.get("DTJ_CONTROL_SECONDS", "7200"))
SEED = int(os.environ.get("DTJ_CONTROL_SEED", "1"))
# Usual step in seconds, ranks of each agent. Each job takes an eighth of the time.
JOBS = ((0.25, 1), (0.5, 2), (1.0, 1), (2.0, 2), (8.0, 1), (0.5, 1), (1.0, 2), (2.5, 1))
AT_ONCE = 4
_HANG_S = 30.0
_SLACK_S = 120.0  # in addition to the time in which a hang is found and healed
_SUSPICION = "the stacks of all ranks follow"
_GENERATION = re.compile(r"^dtj: generation (\d+):", re.MULTILINE)
_HANG = re.compile(r"^dtj: rank (\d+) failed: no step for", re.MULTILINE)


@dataclass(kw_only=True)
class Job:
    """Result of a job.

    alarms   messages about a hang, and restarts, while nothing was wrong
    found_s  from the stop of a rank until it was named and killed; None if it never was
    """

    step_s: float
    ranks: int
    steps: int = 0
    seconds: float = 0.0
    events: Counter[str] = field(default_factory=Counter)
    longest_s: dict[str, float] = field(default_factory=dict)
    alarms: list[str] = field(default_factory=list)
    found_s: float | None = None
    limit_s: float = 0.0


def alarms(log: str) -> list[str]:
    """Lines of the agents' log about a hang, a failure, or a generation other than the first."""
    marks = (_SUSPICION, "failed:", "is lost", "is silent", "was killed", "exited with")
    return [
        line
        for line in log.splitlines()
        if line.startswith("dtj: ") and (_GENERATION.match(line) or any(mark in line for mark in marks))
    ]


def named(log: str) -> set[int]:
    """Ranks that the log says hang."""
    return {int(rank) for rank in _HANG.findall(log)}


def count(job: Job, events: list[list[dict[str, Any]]]) -> None:
    """Add the events that the ranks recorded, one list each, to the job."""
    for event in (each for of_rank in events for each in of_rank):
        if "seconds" in event:
            kind, seconds = event["kind"], event["seconds"]
            job.longest_s[kind] = max(job.longest_s.get(kind, 0.0), seconds)
    for kind in (START_UP, *KINDS):
        job.events[kind] = max(sum(event["kind"] == kind for event in of_rank) for of_rank in events)
    job.steps = max((event["step"] for event in events[0] if event["kind"] == "calm"), default=0)


def text(jobs: list[Job]) -> str:
    """Return the section of the page."""
    head = (
        "usual step, s",
        "ranks",
        "hours",
        "steps",
        "slow events",
        "false alarms",
        "real hang found after, s",
    )
    rows: list[tuple[object, ...]] = [
        (
            job.step_s,
            job.ranks,
            f"{job.seconds / 3600:.2f}",
            job.steps,
            job.events.total(),
            len(job.alarms),
            "never" if job.found_s is None else f"{job.found_s:.1f}",
        )
        for job in jobs
    ]
    rows.append(
        (
            "all",
            "",
            f"{sum(job.seconds for job in jobs) / 3600:.2f}",
            sum(job.steps for job in jobs),
            sum(job.events.total() for job in jobs),
            sum(len(job.alarms) for job in jobs),
            f"{sum(job.found_s is not None for job in jobs)} of {len(jobs)}",
        )
    )
    kinds = ", ".join(
        f"{kind} {sum(job.events[kind] for job in jobs)} "
        f"(longest {max(job.longest_s.get(kind, 0.0) for job in jobs):.1f} s)"
        for kind in (START_UP, *KINDS)
    )
    return f"{report.table(head, rows)}\n\nSlow events by kind: {kinds}."


def measure(number: int, *, step_s: float, nproc: int, seconds: float) -> Job:
    """Run one job: the plan, then a rank that is really stopped."""
    job = Job(step_s=step_s, ranks=AGENTS * nproc, limit_s=max(_HANG_S, 5 * step_s))
    began = time.monotonic()
    with pods(seed=SEED * 100 + number, seconds=seconds, step_s=step_s, nproc=nproc) as agents:

        def is_calm(rank: int) -> bool:
            return agents.calms(rank) > 0

        everyone = range(job.ranks)
        if not agents.until(lambda: all(is_calm(rank) for rank in everyone), within_s=2 * seconds + 600):
            job.alarms.append("the job did not reach the end of its plan")
        job.seconds = time.monotonic() - began
        job.alarms += alarms(agents.log)
        count(job, [agents.events(rank) for rank in everyone])
        if not job.alarms:
            job.found_s = stop_a_rank(agents, Random(SEED * 100 + number).choice(everyone), job.limit_s)
    return job


def stop_a_rank(agents: Pods, rank: int, limit_s: float) -> float | None:
    """Seconds until the stopped rank was named and killed, if another then replaced it and trained."""
    pid = next(event["pid"] for event in reversed(agents.events(rank)) if event["kind"] == "start")
    began = time.monotonic()
    os.kill(pid, signal.SIGSTOP)
    if not agents.until(lambda: named(agents.log) == {rank}, within_s=limit_s + _SLACK_S):
        return None
    found_s = time.monotonic() - began

    def trains_again() -> bool:
        return agents.calms(rank) == 2

    return found_s if agents.until(trains_again, within_s=_SLACK_S) else None


def main() -> None:
    """Run all jobs, write the section, and fail if there was a false alarm or a real hang was missed."""

    def run(number: int) -> Job:
        step_s, nproc = JOBS[number]
        job = measure(number, step_s=step_s, nproc=nproc, seconds=SECONDS / len(JOBS) - _HANG_S)
        print(f"job {number}: {job}", flush=True)
        return job

    jobs = []
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for job in pool.map(run, range(len(JOBS))):
            jobs.append(job)
            report.write("control", text(jobs))
    wrong = [f"job {number}: {alarm}" for number, job in enumerate(jobs) for alarm in job.alarms]
    wrong += [
        f"job {number}: a real hang was not found" for number, job in enumerate(jobs) if job.found_s is None
    ]
    if wrong:
        raise SystemExit("\n".join(wrong))
