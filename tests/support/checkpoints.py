"""Checkpoints as tests read them."""

from typing import Any

from dtj.checkpoint import reader, sharded
from dtj.checkpoint.objects import Location


def whole(folder: Location) -> dict[str, Any]:
    """The whole state of a committed checkpoint, on the CPU, however many ranks wrote it."""
    state, shards = reader.mapped(folder)
    return state | {"parts": sharded.load_tensors(state["parts"], shards, sharded.WHOLE)} if shards else state
