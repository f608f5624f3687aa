"""A Meter that measures with the means of this rank's device: its events, its memory."""

import resource
import sys
import time
from functools import partial
from typing import Any

import torch

from dtj.telemetry.metrics import Meter


def of_device(device: torch.device, **how: Any) -> Meter:
    """A meter for a loop that begins now. how: further fields of Meter."""
    event = partial(torch.cuda.Event, enable_timing=True) if device.type == "cuda" else None
    return Meter(clock=time.monotonic, memory=partial(most_bytes, device), event=event, **how)


def most_bytes(device: torch.device) -> int:
    """Peak memory of this process in bytes: tensors on a CUDA device, else resident memory."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
