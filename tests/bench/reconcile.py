"""What the operator computes when it reconciles one big job: CPU time, without any I/O."""

from __future__ import annotations

import gc
import time
from dataclasses import replace

from dtj_operator.plan.snapshot import Snapshot
from tests.bench import report
from tests.support import big_jobs
from tests.support.builders import JobBuilder

ROUNDS = 20


def main() -> None:
    """Measure and write the section `reconcile` of the page."""
    jobs = [
        ("1,000 pods run", big_jobs.running(1_000)),
        ("10,000 pods run", big_jobs.running(10_000)),
        ("200 pods run, in a cluster of 5,000 nodes", big_jobs.running(200, 5_000)),
        ("200 pods to create, in a cluster of 5,000 nodes, one to avoid", big_jobs.new(200, 5_000)),
        ("1,000 pods have failed, each with a report of 3.5 kB", big_jobs.failed(1_000)),
        ("1,000 agents are silent, no Lease is renewed", big_jobs.silent(1_000)),
    ]
    rows = [(name, f"{cpu_ms(built):.1f}") for name, built in jobs]
    report.write("reconcile", report.table(["job", "CPU, ms"], rows))


def cpu_ms(built: JobBuilder) -> float:
    """Return the CPU time of the fastest of some reconciles."""
    s = built.snapshot()
    return 1000 * min(_once_s(replace(s)) for _ in range(ROUNDS))  # a copy: nothing is derived yet


def _once_s(s: Snapshot) -> float:
    gc.collect()
    began = time.process_time()
    big_jobs.decide(s)
    return time.process_time() - began
