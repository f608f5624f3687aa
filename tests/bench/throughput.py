"""Throughput of the verbs of Run and of hand-written DDP loops: same model, data, ranks and process."""

from __future__ import annotations

import statistics

from tests.bench import ranks, report

MODELS = {
    "linear": "one linear layer, 64 samples: little but the verbs",
    "cnn": "CNN of the digits, 64 samples",
    "gpt": "GPT, 4 layers of width 128, 32 windows of 128 bytes",
}
WORLDS = (1, 2)


def main() -> None:
    """Measure and write the section of the page."""
    rows = [row(model, size) for model in MODELS for size in WORLDS]
    head = [
        "model, global batch",
        "ranks",
        "bare loop, ms a step",
        "usual loop",
        "dtj",
        "more than bare",
        "throughput / bare",
        "throughput / usual",
    ]
    report.write("throughput", report.table(head, rows))


def row(model: str, size: int) -> list[object]:
    """One model at one world size."""
    program = ranks.PROGRAMS / "throughput.py"
    blocks: dict[str, list[float]] = {loop: [] for loop in ("ours", "bare", "usual")}
    for first in range(len(blocks)):
        # While the other loops have their turn, this one makes no step; that is not a hang.
        command = [*ranks.DTJ, "--nproc", size, program, model, first]
        found = ranks.numbers(command, DTJ_HANG_SECONDS="600")
        for loop, took in blocks.items():
            took.extend(found[loop])
    ours, bare, usual = blocks.values()
    more = statistics.median(our - other for our, other in zip(ours, bare, strict=True))
    return [
        MODELS[model],
        size,
        *(f"{statistics.median(took):.2f}" for took in (bare, usual, ours)),
        f"{more:.2f}",
        *(ratio(ours, took) for took in (bare, usual)),
    ]


def ratio(ours: list[float], theirs: list[float]) -> str:
    """Their time divided by ours, block by block: the median, and the middle half."""
    ratios = sorted(their / our for our, their in zip(ours, theirs, strict=True))
    quarter = len(ratios) // 4
    return f"{statistics.median(ratios):.3f} ({ratios[quarter]:.3f}-{ratios[-1 - quarter]:.3f})"
