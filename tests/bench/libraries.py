"""dtj beside Lightning Fabric and Accelerate: a step, evaluation, save, resume and memory, in turns."""

from __future__ import annotations

import ast
import statistics
import tempfile
from collections.abc import Sequence
from typing import Any

from tests.bench import ranks, report

PROGRAM = ranks.PROGRAMS / "libraries.py"
LIBRARIES = {"dtj": "dtj", "fabric": "Lightning Fabric", "accelerate": "Accelerate"}
ROUNDS = 5
MEASURES = {
    "step": "a step",
    "evaluation": "evaluation of 4,096 samples",
    "save": "a save adds",
    "resume": "resume",
}


def main() -> None:
    """Measure and write the section of the page."""
    rounds: list[dict[str, dict[str, Any]]] = []
    for number in range(ROUNDS):
        names = list(LIBRARIES)[number % 3 :] + list(LIBRARIES)[: number % 3]
        rounds.append({name: once(name) for name in names})
    times = [f"{text}, ms" for text in MEASURES.values()]
    head = ["rank 0, two ranks", *times, "memory at its peak, MB", "lines"]
    report.write("libraries", report.table(head, [row(name, rounds) for name in LIBRARIES]))


def once(library: str) -> dict[str, Any]:
    """Train in a fresh folder, then resume in other processes."""
    with tempfile.TemporaryDirectory(prefix="dtj-bench-") as folder:
        command = [*ranks.DTJ, "--nproc", "2", PROGRAM, library, folder]
        trained, resumed = (ranks.numbers([*command, steps], timeout_s=900) for steps in (40, 45))
    assert (trained["steps"], resumed["steps"]) == (40, 5), (library, trained, resumed)
    return trained | {"save": statistics.median(trained["save"]), "resume": resumed["resume"]}


def row(name: str, rounds: Sequence[dict[str, dict[str, Any]]]) -> list[object]:
    """One library: medians over the rounds, and in brackets its ratio to dtj of the same round."""
    cells: list[object] = [LIBRARIES[name]]
    for what in [*MEASURES, "memory"]:
        middle = statistics.median(one[name][what] for one in rounds)
        ratio = statistics.median(one[name][what] / one["dtj"][what] for one in rounds)
        cells.append(f"{middle:.0f} ({ratio:.2f} x)")
    return [*cells, lines_of(f"with_{name}")]


def lines_of(function: str) -> int:
    """Lines of a function of the program, without its head."""
    for node in ast.walk(ast.parse(PROGRAM.read_text())):
        if isinstance(node, ast.FunctionDef) and node.name == function:
            return (node.end_lineno or 0) - node.body[0].lineno + 1
    raise LookupError(function)
