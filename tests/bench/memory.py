"""Memory of a rank under the sharding strategies, as the kernel counts it."""

from __future__ import annotations

from tests.bench import ranks, report

STRATEGIES = ("ddp", "zero1", "fsdp")
WORLDS = (1, 2, 4)


def main() -> None:
    """Measure and write the section of the page."""
    rows = []
    for strategy in STRATEGIES:
        found = [once(strategy, size) for size in WORLDS]
        rows.append([f"`{strategy}`", *(f"{one['kept_mb']:.0f} / {one['peak_mb']:.0f}" for one in found)])
    head = ["MB a rank: kept / at its peak", *(f"{size} rank{'s' * (size > 1)}" for size in WORLDS)]
    report.write("memory", report.table(head, rows))


def once(strategy: str, size: int) -> dict[str, float]:
    """The largest value of all ranks."""
    command = [*ranks.DTJ, "--nproc", size, "--parallel", strategy, ranks.PROGRAMS / "memory.py"]
    # Freed blocks go back to the kernel immediately, so that only memory in use is counted.
    return ranks.numbers(command, MALLOC_MMAP_THRESHOLD_="65536", MALLOC_TRIM_THRESHOLD_="0")
