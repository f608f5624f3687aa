"""How long training waits for a checkpoint, and what a save costs in all, beside torch.save in turns."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Sequence

from tests.bench import ranks, report

PROGRAM = ranks.PROGRAMS / "saving.py"
KINDS: dict[str, list[str]] = {"dtj": [], "dtj, `--async-save`": ["--async-save"]}
ROUNDS = 6
Saves = dict[str, dict[str, list[float]]]


def main() -> None:
    """Measure and write the section of the page."""
    found: dict[str, list[Saves]] = {kind: [] for kind in KINDS}
    for _ in range(ROUNDS):
        for kind, flags in KINDS.items():
            found[kind].append(once(flags))
    head = [
        "save",
        "MB",
        "pairs",
        "training waits, ms",
        "for `torch.save`, fsync, ms",
        "ratio",
        "costs in all, ms",
        "`torch.save`, fsync, ms",
        "ratio",
    ]
    report.write("saving", report.table(head, [row(kind, runs) for kind, runs in found.items()]))


def once(flags: list[str]) -> Saves:
    """Run once on two ranks with a fresh folder."""
    with tempfile.TemporaryDirectory(prefix="dtj-bench-") as folder:
        found: Saves = ranks.numbers(
            [*ranks.DTJ, "--nproc", "2", "--checkpoint", folder, *flags, PROGRAM, folder], timeout_s=900
        )
        return found


def row(kind: str, runs: list[Saves]) -> list[object]:
    """The row of one kind of save. Each of its saves is compared with the one by hand before it."""
    cells: list[object] = [kind, f"{runs[0]['mb']:.0f}", sum(len(one["dtj"]["waits"]) for one in runs)]
    for what in ("waits", "costs"):
        ours = [ms for one in runs for ms in one["dtj"][what]]
        # The last save has no window after it, so its pair has no cost in all.
        theirs = [ms for one in runs for ms, _ in zip(one["by_hand"][what], one["dtj"][what], strict=False)]
        ratios = [our / other for our, other in zip(ours, theirs, strict=True)]
        cells += [spread(ours, 0), spread(theirs, 0), spread(ratios, 2)]
    return cells


def spread(values: Sequence[float], digits: int) -> str:
    """The median, and the middle half in brackets."""
    ordered = sorted(values)
    quarter = len(ordered) // 4
    middle = statistics.median(ordered)
    return f"{middle:.{digits}f} ({ordered[quarter]:.{digits}f}-{ordered[-1 - quarter]:.{digits}f})"
