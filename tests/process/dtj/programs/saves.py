"""Saves as fast as it can, until it is killed."""

from pathlib import Path
from typing import Any

import torch

from dtj.checkpoint import save
from dtj.checkpoint.owner import Owner


def for_ever(run: Path, step: int, floats: int, claimed: Any) -> None:
    owner = Owner(run, {})
    while True:
        save.prepare(owner, step)
        save.commit(owner, step, {"step": step, "parts": {"w": torch.full((floats,), float(step))}})
        claimed.value = step
        step += 1
