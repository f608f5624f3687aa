"""Runs a program of this folder as ranks on this machine and collects the numbers that its rank 0 prints."""

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
    """Called by a program: print numbers for `numbers` to collect."""
    print(_MARK + json.dumps(values), flush=True)


def numbers(
    command: Sequence[object], *, timeout_s: float = 300, folder: str | Path | None = None, **env: str
) -> dict[str, Any]:
    """Numbers printed by the ranks of a command, merged; RuntimeError if it fails or prints none.

    folder  of the command; default: the present one
    """
    path = os.pathsep.join([str(Path("trainer/src").resolve()), str(Path.cwd())])
    ended = subprocess.run(
        [str(word) for word in command],
        timeout=timeout_s,
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": path} | env,
    )
    printed = [line.partition(_MARK)[2] for line in ended.stdout.splitlines() if _MARK in line]
    if ended.returncode or not printed:
        raise RuntimeError(f"{command}: {ended.stderr[-2000:]}")
    found: dict[str, Any] = {}
    for text in printed:
        found |= json.loads(text)
    return found
