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
from collections.abc import Sequence
from concurrent.futures import as_completed
from dataclasses import dataclass, field
from random import Random
from typing import Any

from tests.bench import report
from tests.bench.control_agents import AGENTS, Pods, pods
from tests.bench.control_plan import KINDS, PLAIN_KINDS, START_UP
from tests.support.pool import Pool

SECONDS = float(os.environ.get("DTJ_CONTROL_SECONDS", "7200"))
SEED = int(os.environ.get("DTJ_CONTROL_SEED", "1"))
# Usual step in seconds, ranks of each agent. Each job takes an eighth of the time.
JOBS = ((0.25, 1), (0.5, 2), (1.0, 1), (2.0, 2), (8.0, 1), (0.5, 1), (1.0, 2), (2.5, 1))
AT_ONCE = 4
_HANG_S = 30.0
_SLACK_S = 120.0  # in addition to the time in which a hang is found and healed
_LATE_S = 60.0  # a hang that is found later is printed with the agents' lines
_SUSPICION = "the stacks of all ranks follow"
_GENERATION = re.compile(r"^dtj: generation (\d+):", re.MULTILINE)
_HANG = re.compile(r"^dtj: rank (\d+) failed: no step for", re.MULTILINE)


@dataclass(kw_only=True)
class Job:
    """Result of a job.

    alarms   messages about a hang, and restarts, while nothing was wrong
    found_s  from the stop of a rank until it was named and killed; None if it never was
    is_over  else its figures are those so far
    """

    step_s: float
    ranks: int
    name: str = "dtj.Run"
    steps: int = 0
    seconds: float = 0.0
    events: Counter[str] = field(default_factory=Counter)
    longest_s: dict[str, float] = field(default_factory=dict)
    alarms: list[str] = field(default_factory=list)
    found_s: float | None = None
    is_over: bool = False


def alarms(log: str) -> list[str]:
    """Lines of the agents' log about a hang, a failure, or a generation other than the first."""
    lost = ("lost the connection to replica", "no message from replica")
    marks = (_SUSPICION, *lost, "failed:", "was killed", "exited with")
    return [
        line
        for line in log.splitlines()
        if line.startswith("dtj: ") and (_GENERATION.match(line) or any(mark in line for mark in marks))
    ]


def named(log: str) -> list[int]:
    """Ranks that the log says hang, each as often as it says so."""
    return [int(rank) for rank in _HANG.findall(log)]


def count(job: Job, events: list[list[dict[str, Any]]]) -> None:
    """Write the events that the ranks recorded, one list each, into the job."""
    for event in (each for of_rank in events for each in of_rank):
        if "seconds" in event:
            kind, seconds = event["kind"], event["seconds"]
            job.longest_s[kind] = max(job.longest_s.get(kind, 0.0), seconds)
    for kind in (START_UP, *KINDS, *PLAIN_KINDS):
        job.events[kind] = max(sum(event["kind"] == kind for event in of_rank) for of_rank in events)
    job.steps = max((event["step"] for event in events[0] if event["kind"] == "calm"), default=0)


def text(jobs: list[Job], *, kinds: Sequence[str] = KINDS) -> str:
    """Return the section of the page."""
    head = (
        "program",
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
            job.name,
            job.step_s,
            job.ranks,
            f"{job.seconds / 3600:.2f}",
            job.steps,
            job.events.total(),
            len(job.alarms),
            f"{job.found_s:.1f}" if job.found_s is not None else "never" if job.is_over else "not tried yet",
        )
        for job in jobs
    ]
    rows.append(
        (
            "all",
            "",
            "",
            f"{sum(job.seconds for job in jobs) / 3600:.2f}",
            sum(job.steps for job in jobs),
            sum(job.events.total() for job in jobs),
            sum(len(job.alarms) for job in jobs),
            f"{sum(job.found_s is not None for job in jobs)} of {len(jobs)}",
        )
    )
    told = ", ".join(
        f"{kind} {sum(job.events[kind] for job in jobs)} "
        f"(longest {max(job.longest_s.get(kind, 0.0) for job in jobs):.1f} s)"
        for kind in (START_UP, *kinds)
    )
    return f"{report.table(head, rows)}\n\nSlow events by kind: {told}."


def problems(jobs: list[Job]) -> list[str]:
    """False alarms and missed hangs, a line each."""
    wrong = [f"job {number}: {alarm}" for number, job in enumerate(jobs) for alarm in job.alarms]
    missed = [number for number, job in enumerate(jobs) if job.found_s is None]
    return wrong + [f"job {number}: a real hang was not found" for number in missed]


def measure(job: Job, number: int, *, program: str, seconds: float, **env: object) -> None:
    """Run one job: the plan, then a rank that is really stopped. Writes into the job while it runs."""
    began = time.monotonic()
    plan = {"SEED": SEED * 100 + number, "STEP_S": job.step_s, "SECONDS_OF_PLAN": seconds}
    everyone = range(job.ranks)
    with pods(program, nproc=job.ranks // AGENTS, **plan, **env) as agents:

        def is_calm() -> bool:
            job.seconds = time.monotonic() - began
            job.alarms = alarms(agents.log)
            count(job, [agents.events(rank) for rank in everyone])
            return all(agents.calms(rank) > 0 for rank in everyone)

        if not agents.until(is_calm, within_s=2 * seconds + 600, poll_s=1.0):
            job.alarms.append("the job did not reach the end of its plan")
        if not job.alarms:
            rank = Random(SEED * 100 + number).choice(everyone)
            job.found_s = stop_a_rank(agents, rank, max(_HANG_S, 5 * job.step_s))
        job.is_over = True
        print(f"job {number}: {job}", flush=True)
        if job.found_s is None or job.found_s > _LATE_S:
            print("\n".join(line for line in agents.log.splitlines() if line.startswith("dtj: ")), flush=True)


def stop_a_rank(agents: Pods, rank: int, limit_s: float) -> float | None:
    """Seconds until the stopped rank was named and killed, if another then replaced it and trained."""
    pid = next(event["pid"] for event in reversed(agents.events(rank)) if event["kind"] == "start")
    began = time.monotonic()
    os.kill(pid, signal.SIGSTOP)
    if not agents.until(lambda: set(named(agents.log)) == {rank}, within_s=limit_s + _SLACK_S):
        return None
    found_s = time.monotonic() - began

    def trains_again() -> bool:
        return agents.calms(rank) == 2

    return found_s if agents.until(trains_again, within_s=_SLACK_S) else None


def main() -> None:
    """Run all jobs, write the section, and fail if there was a false alarm or a real hang was missed."""
    jobs = [Job(step_s=step_s, ranks=AGENTS * nproc) for step_s, nproc in JOBS]
    with Pool(AT_ONCE) as pool:
        seconds = SECONDS / len(JOBS) - _HANG_S
        runs = [
            pool.submit(measure, job, number, program="tests.bench.control_program", seconds=seconds)
            for number, job in enumerate(jobs)
        ]
        for run in as_completed(runs):
            run.result()
            report.write("control", text([job for job in jobs if job.is_over]))
    if wrong := problems(jobs):
        raise SystemExit("\n".join(wrong))
