"""Faults on real kubelets: how long until all ranks train again, and where the time goes.

Each kind of fault (DTJ_RECOVERY_KINDS selects them) has its own table. The job of two replicas with one rank
each has no checkpoint: the state comes from the survivor's memory. Results are written even if a later fault
cannot be measured.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from tests.bench import report
from tests.bench.recovery_jobs import REPLICAS, namespace
from tests.bench.recovery_nodes import lost_nodes
from tests.bench.recovery_times import HANG, POD, RANK, STAGES, percentile
from tests.bench.recovery_trial import TROUBLE, Job, Trial
from tests.bench.recovery_watch import Watch
from tests.cluster import install, kind
from tests.support.pool import Pool

NAMESPACE = "bench-recovery"
KINDS = tuple(os.environ.get("DTJ_RECOVERY_KINDS", "rank pod pod0 hang node").split())
FAULTS = int(os.environ.get("DTJ_RECOVERY_FAULTS", "20"))  # of each kind, at least
A_JOB = 5  # faults per job
AT_ONCE = {"hang": 4}  # jobs at the same time, for kinds that mostly wait
Act = Callable[[Job, int], Trial]


def ranks(job: Job, number: int, name: str, kind: str) -> Trial:
    """Signal the rank of one pod after another."""
    victim = job.pods[number % REPLICAS]
    before = job.uid(victim)
    return Trial(number=number, spent=job.recover(kind, victim, job.signal(victim, name), before))


def deleted(job: Job, number: int, index: int) -> Trial:
    """Delete the pod of an index."""
    victim = job.pods[index]
    before = job.uid(victim)
    return Trial(number=number, spent=job.recover(POD, victim, job.delete(victim), before))


def one_after_the_other(make: Callable[[str], Job], name: str, act: Act) -> list[Trial]:
    """Inject the faults of one job; stops if it does not recover or a fault cannot be injected."""
    job, found = make(name), []
    try:
        for number in range(1, A_JOB + 1):
            job.settle()
            found.append(act(job, number))
            print(f"{name} {number}: {found[-1]}", flush=True)
            if not found[-1].spent:
                break
    except TROUBLE as error:
        print(f"{name}: ends after {len(found)} faults: {error}", flush=True)
    finally:
        job.delete_job()
    return found


def beside_each_other(make: Callable[[str], Job], which: str, act: Act) -> Iterator[Trial]:
    """Run as many jobs as FAULTS needs."""
    with Pool(AT_ONCE.get(which, 1)) as pool:
        begun = [
            pool.submit(one_after_the_other, make, f"{which}-{number}", act)
            for number in range(-(-FAULTS // A_JOB))
        ]
        for each in begun:
            yield from each.result()


def text(trials: Sequence[Trial]) -> str:
    """Return one table with the stages as columns."""
    healed = [trial for trial in trials if trial.spent]
    shown = [stage for stage in STAGES if any(stage in trial.spent for trial in trials)]
    rows = []
    fifth = [trial for trial in healed if trial.number == A_JOB]
    for name, some, share in (
        ("p50", healed, 0.5),
        ("p99", healed, 0.99),
        ("p50 of the fifth fault of each job", fifth, 0.5),
    ):
        if some:
            cells = [_cell([t.spent[s] for t in some if s in t.spent], share) for s in [*shown, "all"]]
            rows.append([name, len(some), *cells])
    stuck = len(trials) - len(healed)
    failed = f"\n\n{stuck} of {len(trials)} never trained again." if stuck else ""
    return report.table(["seconds", "faults", *shown, "**all**"], rows) + failed


def _cell(samples: Sequence[float], share: float) -> str:
    return f"{percentile(samples, share):.2f}" if samples else ""


def main() -> None:
    """Measure the selected kinds; write a section for each."""
    root = install.with_operator()
    cluster = kind.create()
    acts: dict[str, Act] = {
        "rank": partial(ranks, name="KILL", kind=RANK),
        "hang": partial(ranks, name="STOP", kind=HANG),
        "pod": partial(deleted, index=1),
        "pod0": partial(deleted, index=0),
    }
    with namespace(root, NAMESPACE) as kubectl, Watch(kubectl) as watch:
        make = partial(Job, cluster, kubectl, watch)
        for which in KINDS:
            found: list[Trial] = []
            trials = (
                lost_nodes(cluster, make, losses=FAULTS)
                if which == "node"
                else beside_each_other(make, which, acts[which])
            )
            try:
                for trial in trials:
                    found.append(trial)
            finally:
                if found:
                    report.write(f"recovery {which}", text(found))
