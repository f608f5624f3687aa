"""Checkpoints as tests read them."""

from pathlib import Path
from typing import Any

import torch

from dtj.checkpoint import paths, reader, restore, save
from dtj.checkpoint.objects import Location
from dtj.checkpoint.owner import Owner

STATE: dict[str, Any] = {"step": 1, "parts": {"w": torch.arange(1000.0)}}


def whole(folder: Location) -> dict[str, Any]:
    """The whole state of a committed checkpoint, on the CPU, however many ranks wrote it."""
    state, shards = reader.mapped(folder)
    if not shards:
        return state
    from dtj.checkpoint import sharded  # which imports torch.distributed.checkpoint

    return state | {"parts": sharded.load_tensors(state["parts"], shards, sharded.WHOLE)}


def commit(run: Location | Owner, *steps: int, state: dict[str, Any] = STATE, **how: Any) -> Location:
    owner = run if isinstance(run, Owner) else Owner(run, {})
    for step in steps:
        save.prepare(owner, step)
        folder = save.commit(owner, step, state | {"step": step}, **how)
    return folder


def names(run: Path) -> list[str]:
    """What is in a run's folder, except for the records of its owner and of its best checkpoint."""
    return sorted(child.name for child in run.iterdir() if child.name not in paths.RECORDS)


def found(run: Location | None, resume: Location | None = None) -> tuple[str | None, list[str]]:
    """Name of the checkpoint that would be loaded, and the warnings."""
    warnings: list[str] = []
    hit = restore.newest(reader.candidates(run, resume), None, load=lambda _: None, say=warnings.append)
    return (hit.folder.name if hit else None), [w for w in warnings if "resuming" not in w]
