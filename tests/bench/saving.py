"""How long training waits for a checkpoint, and what a save costs in all, compared with torch.save."""

from __future__ import annotations

import statistics
import tempfile

from tests.bench import ranks, report

PROGRAM = ranks.PROGRAMS / "saving.py"
KINDS = {
    "by hand: `torch.save`, fsync": ("by hand", []),
    "dtj": ("dtj", []),
    "dtj, `--async-save`": ("dtj", ["--async-save"]),
}
ROUNDS = 6


def main() -> None:
    """Measure and write the section of the page."""
    found: dict[str, list[dict[str, float]]] = {kind: [] for kind in KINDS}
    for _ in range(ROUNDS):
        for kind, (how, flags) in KINDS.items():
            found[kind].append(once(how, flags))
    head = ["save", "MB", "runs x saves", "training waits, ms", "time that a save costs in all, ms"]
    report.write("saving", report.table(head, [row(kind, runs) for kind, runs in found.items()]))


def once(how: str, flags: list[str]) -> dict[str, float]:
    """Run once on two ranks with a fresh folder."""
    with tempfile.TemporaryDirectory(prefix="dtj-bench-") as folder:
        command = [*ranks.DTJ, "--nproc", "2", "--checkpoint", folder, *flags, PROGRAM, how, folder]
        return ranks.numbers(command)


def row(kind: str, runs: list[dict[str, float]]) -> list[object]:
    """The row of one kind of save."""
    waits = [ms for one in runs for ms in one["waits_ms"]]  # type: ignore[attr-defined]
    costs = [one["costs_ms"] for one in runs]
    return [
        kind,
        f"{runs[0]['mb']:.0f}",
        f"{len(runs)} x {len(waits) // len(runs)}",
        f"{statistics.median(waits):.0f} ({min(waits):.0f}-{max(waits):.0f})",
        f"{statistics.median(costs):.0f} ({min(costs):.0f}-{max(costs):.0f})",
    ]
