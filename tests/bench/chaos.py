"""A thousand faults of every kind; counts orphans, duplicates, resurrected and stuck jobs."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections import Counter
from pathlib import Path

from tests.bench import report
from tests.chaos.run import Result, run
from tests.cluster import tools
from tests.integration import controlplane
from tests.integration.chart.conftest import Helm
from tests.integration.operator.conftest import grant

SEEDS = [int(seed) for seed in os.environ.get("DTJ_CHAOS_SEEDS", "11 12 13").split()]
FAULTS = int(os.environ.get("DTJ_CHAOS_FAULTS", "400"))  # of each seed
JOBS = 12  # at a time


def measure(seed: int, faults: int) -> Result:
    """Run on a control plane of its own, so that its history contains only this seed."""
    with tempfile.TemporaryDirectory(prefix="dtj-chaos-") as name:
        folder = Path(name)
        with controlplane.running(folder) as plane:
            controlplane.install_crd(plane)
            (folder / "helm").mkdir()
            grant(Helm(tools.ensure("helm")["helm"], folder / "helm"), plane)
            plane.kubectl("create", "namespace", "chaos")
            return asyncio.run(run(plane, "chaos", folder, seed=seed, faults=faults, jobs=JOBS))


def text(results: list[Result]) -> str:
    """Return the section of the page."""
    faults = sum((result.faults for result in results), Counter[str]())
    kinds = ", ".join(f"{name.replace('_', ' ')} {number}" for name, number in faults.most_common())
    head = (
        "seed",
        "faults",
        "jobs",
        "pods",
        "watch events",
        "operator processes stopped",
        "seconds",
        "violations",
    )
    rows = [
        (r.seed, r.faults.total(), r.jobs, r.pods, r.events, r.deaths, f"{r.seconds:.0f}", len(r.violations))
        for r in results
    ]
    return f"{report.table(head, rows)}\n\nFaults by kind: {kinds}."


def main() -> None:
    """Run all seeds, write the section, and fail if an invariant was violated."""
    results = []
    for seed in SEEDS:
        results.append(measure(seed, FAULTS))
        print(f"seed {seed}: {results[-1].faults.total()} faults, {len(results[-1].violations)} violations")
        for line, times in results[-1].exits.items():
            print(f"  {times} operator processes exited by themselves: {line}")
    report.write("chaos", text(results))
    wrong = [f"seed {r.seed}: {violation}" for r in results for violation in r.violations]
    if wrong:
        raise SystemExit("\n".join(wrong))
