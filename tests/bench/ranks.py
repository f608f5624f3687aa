"""Runs a program of this folder as ranks on this machine and takes the numbers that its rank 0 prints."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

PROGRAMS = Path(__file__).with_name("programs")
DTJ = (sys.executable, "-m", "dtj", "run")
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone")
_MARK = "result "


def tell(**values: Any) -> None:
    """For a program: print numbers for `numbers` to find."""
    print(_MARK + json.dumps(values), flush=True)


def numbers(command: Sequence[object], *, timeout_s: float = 300, **env: str) -> dict[str, Any]:
    """What the ranks of a command told, joined; raises RuntimeError where it fails or says nothing."""
    path = os.pathsep.join([str(Path("trainer/src").resolve()), str(Path.cwd())])
    ended = subprocess.run(
        [str(word) for word in command],
        timeout=timeout_s,
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": path} | env,
    )
    told = [line.partition(_MARK)[2] for line in ended.stdout.splitlines() if _MARK in line]
    if ended.returncode or not told:
        raise RuntimeError(f"{command}: {ended.stderr[-2000:]}")
    found: dict[str, Any] = {}
    for text in told:
        found |= json.loads(text)
    return found
