"""Flags -> Strategy. The only place that knows all of them."""

import torch

from dtj.parallel.ddp import DataParallel
from dtj.parallel.fsdp import FullyShard
from dtj.parallel.layout import Layout
from dtj.parallel.pipeline import Pipeline
from dtj.parallel.strategy import Strategy
from dtj.parallel.tensor import TensorParallel
from dtj.parallel.zero import ZeroOne


def choose(layout: Layout, device: torch.device, *, half: torch.dtype | None) -> Strategy:
    """The strategy of a layout; half: the type of --precision, None for float32."""
    match layout.strategy:
        case "none":
            return Strategy(layout, device)
        case "ddp":
            return DataParallel(layout, device)
        case "zero1":
            return ZeroOne(layout, device)
        case "fsdp" | "hsdp":
            return FullyShard(layout, device, half=half)
        case "tp" | "tp+ddp":
            return TensorParallel(layout, device)
        case "pp" | "pp+ddp":
            return Pipeline(layout, device)
    raise AssertionError(layout.strategy)
