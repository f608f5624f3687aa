"""For each strategy and policy: bytes sent, rate on a slow link, loss after the same number of samples.

Every run has its own network namespace, in which only its two ranks communicate, over a loopback that a token
bucket slows down. Bytes are what the kernel counted, headers included.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.bench import report

PROGRAM = Path(__file__).with_name("programs") / "exchange.py"
FLAGS = (
    "--parallel ddp",
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
RATE = "100mbit"
SCRIPT = f"""
ip link set lo up mtu 1500
tc qdisc add dev lo root tbf rate {RATE} burst 64kb limit 10mb
exec "$0" -m dtj run --nproc 2 "$@"
"""


def main() -> None:
    """Measure and write the section of the page."""
    rows = [[f"`{flags}`", *measure(flags)] for flags in FLAGS]
    head = ["flags", "kB a step, both ranks", "steps/s at 100 Mbit/s", "held-out bits per byte"]
    report.write("exchange", report.table(head, rows))


def measure(flags: str) -> list[str]:
    """Kilobytes a step, steps a second and the score of one run; raises if it fails."""
    ended = subprocess.run(
        ["unshare", "-rn", "sh", "-ec", SCRIPT, sys.executable, *flags.split(), PROGRAM],
        timeout=400,
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path("trainer/src").resolve())},
    )
    matched = re.search(r"result (\d+) ([\d.]+) ([\d.]+)", ended.stderr)
    if ended.returncode or not matched:
        raise RuntimeError(f"{flags}: {ended.stderr[-2000:]}")
    print(flags, *matched.groups(), flush=True)
    return [f"{int(matched[1]) / 1000:.0f}", *matched.groups()[1:]]
