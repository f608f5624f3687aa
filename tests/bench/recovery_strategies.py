"""Faults on real kubelets under strategies that continue from copies in memory; there is no checkpoint.

For each strategy a job of two pods on two nodes, a tiny GPT, steps of 0.1 s. A rank is killed, or a pod is
deleted immediately; replicas take turns. The clock stops when all ranks have done a step that none had done
before. The sections are written after each job.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tests.bench import report
from tests.bench.recovery_copies import STRATEGIES
from tests.bench.recovery_jobs import REPLICAS, namespace
from tests.bench.recovery_times import Line, percentile
from tests.bench.recovery_trial import TROUBLE, Job, log_since
from tests.bench.recovery_watch import Watch
from tests.cluster import install, kind
from tests.support.kubectl import Kubectl

NAMESPACE = "bench-recovery-strategies"
FAULTS = int(os.environ.get("DTJ_STRATEGIES_FAULTS", "5"))  # of each kind, under each strategy
KINDS = tuple(os.environ.get("DTJ_STRATEGIES_KINDS", "rank pod").split())
_WITHIN_S = 120.0
_BEFORE_S = 5.0  # of the logs before a fault
_STEP = re.compile(r"(?:\[rank (\d+)\] )?did step (\d+)$")


@dataclass(kw_only=True)
class Tally:
    """Results of one strategy and kind of fault.

    seconds  from each fault until all ranks did a new step
    again    steps that were done again
    made     number of faults
    """

    seconds: list[float] = field(default_factory=list)
    again: list[int] = field(default_factory=list)
    made: int = 0


def new_step_at(logs: Sequence[Line], fault: float, *, ranks: int) -> tuple[float, int] | None:
    """When all ranks had done a step that none had done before the fault, and how many steps were done again.

    logs  of all pods, from some seconds before the fault; pure
    """
    steps = [
        (line.at, int(found[1] or 0), int(found[2])) for line in logs if (found := _STEP.search(line.text))
    ]
    began = [line.at for line in logs if line.text.endswith("began") and line.at > fault]
    if not began:
        return None
    done = max((step for at, _, step in steps if at <= min(began)), default=0)
    after = [(at, rank, step) for at, rank, step in steps if at > min(began)]
    new = [[at for at, by, step in after if by == rank and step > done] for rank in range(ranks)]
    if not all(new):
        return None
    return max(map(min, new)), done - min(step for _, _, step in after) + 1


def strike(job: Job, kubectl: Kubectl, which: str, number: int, *, ranks: int) -> tuple[float, int] | None:
    """One fault; seconds until all ranks did a new step, and steps that were done again."""
    victim = job.pods[number % REPLICAS]
    earlier = [line for pod in job.pods for line in log_since(kubectl, pod, time.time() - _BEFORE_S)]
    fault = job.signal(victim, "KILL") if which == "rank" else job.delete(victim)
    deadline = time.monotonic() + _WITHIN_S
    while time.monotonic() < deadline:
        time.sleep(0.5)
        later = [line for pod in job.pods for line in log_since(kubectl, pod, fault - _BEFORE_S)]
        if found := new_step_at(earlier + later, fault, ranks=ranks):
            return found[0] - fault, found[1]
    return None


def one_job(job: Job, kubectl: Kubectl, which: str, tally: Tally, *, ranks: int) -> None:
    """All faults of one job; ends if it does not recover."""
    try:
        for number in range(FAULTS):
            job.settle()
            tally.made += 1
            found = strike(job, kubectl, which, number, ranks=ranks)
            print(job.name, number, found, flush=True)
            if found is None:
                return
            tally.seconds.append(found[0])
            tally.again.append(found[1])
    except TROUBLE as error:
        print(f"{job.name}: ends after {tally.made} faults: {error}", flush=True)
    finally:
        job.delete_job()


def text(tallies: Mapping[str, Tally]) -> str:
    """The section of one kind of fault."""
    head = (
        "strategy",
        "ranks",
        "faults",
        "trained again",
        "p50, s",
        "longest, s",
        "most steps that were done again",
    )
    rows = []
    for name, tally in tallies.items():
        times = [
            f"{percentile(tally.seconds, share):.2f}" if tally.seconds else "never" for share in (0.5, 1.0)
        ]
        again = max(tally.again, default="")
        rows.append((name, STRATEGIES[name][0], tally.made, len(tally.seconds), *times, again))
    return report.table(head, rows)


def main() -> None:
    """Measure the selected kinds and strategies (DTJ_COPIES_OF)."""
    root = install.with_operator()
    cluster = kind.create()
    with namespace(root, NAMESPACE) as kubectl, Watch(kubectl) as watch:
        for which in KINDS:
            tallies: dict[str, Tally] = {}
            for name, (size, flags) in STRATEGIES.items():
                slug = re.sub(r"[^a-z0-9]+", "-", name).strip("-")
                job = Job(
                    cluster,
                    kubectl,
                    watch,
                    f"{which}-{slug}",
                    "--step-s=0.1",
                    "--gpt",
                    flags=flags,
                    processes=size // REPLICAS,
                )
                one_job(job, kubectl, which, tallies.setdefault(name, Tally()), ranks=size)
                report.write(f"recovery strategies {which}", text(tallies))
