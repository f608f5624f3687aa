"""What each way to share the work sends and reaches: bytes on the wire, loss after equal samples.

Every run has a network namespace of its own, in which nothing but its two ranks speaks. Bytes are what the
kernel counted, headers included.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.bench import report

RECIPE = ("dtj.recipes.text:recipe", "kilobytes=120", "context=64", "layers=2", "width=64")
FLAGS = (
    "",
    "--compress bf16",
    "--compress powersgd:4",
    "--compress topk:1",
    "--sync local:8",
    "--sync postlocal:8",
    "--sync diloco:8",
    "--sync stale:2",
    "--parallel zero1",
    "--parallel fsdp",
    "--parallel tp",
    "--parallel pp",
)
SCRIPT = """
import fcntl, socket, struct, subprocess, sys
fcntl.ioctl(socket.socket(), 0x8914, struct.pack("16sH14s", b"lo", 9, b""))  # up
ended = subprocess.run([sys.executable, "-m", "dtj", *sys.argv[1:]])
line = next(line for line in open("/proc/net/dev") if line.strip().startswith("lo:"))
print("bytes", line.split()[9])
sys.exit(ended.returncode)
"""


@dataclass(frozen=True, kw_only=True)
class Run:
    """One training run: bytes sent by both ranks, steps, and the held-out bits per byte."""

    sent: int
    steps: int
    score: float


def main() -> None:
    """Measure and write the section of the page; a difference of two runs leaves out the start."""
    rows: list[list[str]] = []
    for flags in FLAGS:
        short, long = train(flags, epochs=1), train(flags, epochs=3)
        sent = (long.sent - short.sent) / (long.steps - short.steps)
        rows.append([flags or "--parallel ddp", f"{sent / 1000:.0f}", f"{long.score:.3f}"])
        print(*rows[-1], sep="\t", flush=True)
    head = ["flags", "kB a step, both ranks", "held-out bits per byte"]
    report.write("exchange", report.table(head, rows))


def train(flags: str, *, epochs: int) -> Run:
    """Run the recipe on two ranks; raises where it fails."""
    command = ["unshare", "-rn", sys.executable, "-c", SCRIPT, "train", "--nproc", "2", *flags.split()]
    ended = subprocess.run(
        [*command, *RECIPE, f"epochs={epochs}"],
        timeout=300,
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path("trainer/src").resolve())},
    )
    if ended.returncode:
        raise RuntimeError(f"{flags}: {ended.stderr[-2000:]}")
    told = re.search(r"done: (\d+) steps, held-out bits_per_byte ([\d.]+)", ended.stderr)
    sent = re.search(r"bytes (\d+)", ended.stdout)
    if not told or not sent:
        raise RuntimeError(f"{flags}: no result in {ended.stdout[-500:]} {ended.stderr[-500:]}")
    return Run(sent=int(sent[1]), steps=int(told[1]), score=float(told[2]))
