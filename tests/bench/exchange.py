"""What each way to share the work sends and reaches: bytes on the wire, loss after equal samples.

Every run has a network namespace of its own, in which nothing but its two ranks speaks. Bytes are what the
kernel counted, headers included.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.bench import report

PROGRAM = Path(__file__).with_name("exchange_program.py")
FLAGS = (
    "--parallel ddp",
    "--compress bf16",
    "--compress powersgd:4",
    "--compress topk:1",
    "--sync local:8",
    "--sync diloco:8",
    "--sync stale:2",
    "--parallel zero1",
    "--parallel fsdp",
    "--parallel tp",
    "--parallel pp",
)
SCRIPT = """
import fcntl, os, socket, struct, sys
fcntl.ioctl(socket.socket(), 0x8914, struct.pack("16sH14s", b"lo", 9, b""))  # up
os.execv(sys.executable, [sys.executable, "-m", "dtj", "run", "--nproc", "2", *sys.argv[1:]])
"""


def main() -> None:
    """Measure and write the section of the page."""
    rows = [[f"`{flags}`", *measure(flags)] for flags in FLAGS]
    head = ["flags", "kB a step, both ranks", "held-out bits per byte"]
    report.write("exchange", report.table(head, rows))


def measure(flags: str) -> list[str]:
    """Kilobytes a step and the score of one run; raises where it fails."""
    ended = subprocess.run(
        ["unshare", "-rn", sys.executable, "-c", SCRIPT, *flags.split(), PROGRAM],
        timeout=300,
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path("trainer/src").resolve())},
    )
    told = re.search(r"result (\d+) ([\d.]+)", ended.stderr)
    if ended.returncode or not told:
        raise RuntimeError(f"{flags}: {ended.stderr[-2000:]}")
    print(flags, *told.groups(), flush=True)
    return [f"{int(told[1]) / 1000:.0f}", told[2]]
