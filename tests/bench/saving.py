"""How long training waits for a checkpoint, and what a save costs in all, beside torch.save by hand."""

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
    report.write("saving", report.table(head, [row(kind, told) for kind, told in found.items()]))


def once(how: str, flags: list[str]) -> dict[str, float]:
    """One run on two ranks with a fresh folder."""
    with tempfile.TemporaryDirectory(prefix="dtj-bench-") as folder:
        command = [*ranks.DTJ, "--nproc", "2", "--checkpoint", folder, *flags, PROGRAM, how, folder]
        return ranks.numbers(command)


def row(kind: str, told: list[dict[str, float]]) -> list[object]:
    """One kind of save."""
    waits = [ms for one in told for ms in one["waits_ms"]]  # type: ignore[attr-defined]
    costs = [one["costs_ms"] for one in told]
    return [
        kind,
        f"{told[0]['mb']:.0f}",
        f"{len(told)} x {len(waits) // len(told)}",
        f"{statistics.median(waits):.0f} ({min(waits):.0f}-{max(waits):.0f})",
        f"{statistics.median(costs):.0f} ({min(costs):.0f}-{max(costs):.0f})",
    ]
