"""Saves as fast as it can, until it is killed."""

from pathlib import Path
from typing import Any

import torch

from dtj.checkpoint import save


def for_ever(run: Path, step: int, floats: int, claimed: Any) -> None:
    while True:
        save.prepare(run, step)
        save.commit(run, step, {"step": step, "parts": {"w": torch.full((floats,), float(step))}})
        claimed.value = step
        step += 1
