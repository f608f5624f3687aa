"""From the command line to the first step of all ranks, and from a crash to the next step. Also torchrun."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence

from tests.bench import ranks, report

PROGRAM = ranks.PROGRAMS / "launch.py"
PAIRS = 5
COMMANDS = {
    "dtj run": [*ranks.DTJ, "--nproc", "2", "--max-restarts", "1"],
    "torchrun": [*ranks.TORCHRUN, "--nproc-per-node", "2", "--max-restarts", "1"],
}


def main() -> None:
    """Measure and write the section of the page."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in COMMANDS}
    for number in range(PAIRS):
        for name in COMMANDS if number % 2 else reversed(COMMANDS):
            found[name].append(once(COMMANDS[name]))
    rows = [
        [f"`{name}`", *(report.seconds(column) for column in zip(*samples, strict=True))]
        for name, samples in found.items()
    ]
    head = ["launcher, 2 ranks", "command -> first step, s", "rank exits with code 3 -> next step, s"]
    report.write("launch", report.table(head, rows))


def once(command: Sequence[object]) -> tuple[float, float]:
    """One run of a script that crashes once."""
    with tempfile.TemporaryDirectory(prefix="dtj-bench-") as folder:
        began = time.time()
        # Without it, torchrun's restarted ranks find the addresses of the old ones and do not form a group.
        numbers = ranks.numbers([*command, PROGRAM, folder], TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1")
    return numbers["first_step_at"] - began, numbers["next_step_at"] - numbers["crashed_at"]
