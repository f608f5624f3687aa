"""Throughput of the verbs of Run against a DDP loop written by hand: same model, data, ranks and process."""

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
    head = ["model, global batch", "ranks", "by hand, ms a step", "dtj", "more", "throughput, ratio"]
    report.write("throughput", report.table(head, rows))


def row(model: str, size: int) -> list[object]:
    """One model at one world size."""
    program = ranks.PROGRAMS / "throughput.py"
    # While the other loop has its turn, no step of this one is a hang.
    found = ranks.numbers([*ranks.DTJ, "--nproc", size, program, model], DTJ_HANG_SECONDS="600")
    ours, theirs = found["ours_ms"], found["theirs_ms"]
    ratios = sorted(their / our for our, their in zip(ours, theirs, strict=True))
    more = statistics.median(our - their for our, their in zip(ours, theirs, strict=True))
    quarter = len(ratios) // 4
    spread = f"{ratios[quarter]:.3f}-{ratios[-1 - quarter]:.3f}"
    return [
        MODELS[model],
        size,
        f"{statistics.median(theirs):.2f}",
        f"{statistics.median(ours):.2f}",
        f"{more:.2f}",
        f"{statistics.median(ratios):.3f} ({spread})",
    ]
