"""Flags -> Strategy. The only module that knows all strategies."""

import torch

from dtj.errors import RecipeError
from dtj.parallel import compress
from dtj.parallel.ddp import DataParallel
from dtj.parallel.fsdp import FullyShard
from dtj.parallel.layout import Layout
from dtj.parallel.local_sgd import DiLoCo, LocalSGD
from dtj.parallel.pipeline import Pipeline
from dtj.parallel.stale import Stale
from dtj.parallel.strategy import Strategy
from dtj.parallel.tensor import TensorAndFullyShard, TensorParallel
from dtj.parallel.zero import ZeroOne
from dtj.settings import Settings


def select(settings: Settings, layout: Layout, device: torch.device, *, half: torch.dtype | None) -> Strategy:
    """The strategy for a layout; half: the data type of --precision, None for float32.

    Raises RecipeError for flags that cannot be combined.
    """
    _check(settings, layout)
    match layout.strategy:
        case "none":
            return Strategy(layout, device)
        case "ddp":
            return _data_parallel(settings, layout, device)
        case "zero1":
            return ZeroOne(layout, device)
        case "fsdp" | "hsdp":
            return FullyShard(layout, device, half=half, reduce_once=settings.reduce_once)
        case "tp" | "tp+ddp":
            return TensorParallel(layout, device)
        case "tp+fsdp":
            return TensorAndFullyShard(layout, device, half=half)
        case "pp" | "pp+ddp":
            return Pipeline(layout, device)
    raise AssertionError(layout.strategy)


def _data_parallel(settings: Settings, layout: Layout, device: torch.device) -> Strategy:
    name, amount = ("every", None) if settings.sync is None else (settings.sync.name, settings.sync.amount)
    steps = int(amount or 1)
    match name:
        case "local":
            return LocalSGD(layout, device, every=steps)
        case "postlocal":
            return LocalSGD(layout, device, every=steps, alone_from=0.5)
        case "diloco":
            return DiLoCo(layout, device, every=steps)
        case "stale":
            return Stale(layout, device, delay=steps)
    small = settings.compress
    return DataParallel(layout, device, hook=compress.hook(small.name, small.amount) if small else None)


def _check(settings: Settings, layout: Layout) -> None:
    policy = settings.sync.name if settings.sync else "every"
    flags = [f"--sync {policy}"] if policy != "every" else []
    flags += [f"--devices {settings.devices}"] if settings.devices > 1 else []
    flags += [f"--compress {settings.compress.name}"] if settings.compress else []
    for flag, strategies, why in (
        (
            "--check-every" if settings.check_every else "",
            ("ddp", "zero1"),
            ": the ranks hold different parts",
        ),
        ("--reduce-once" if settings.reduce_once else "", ("fsdp", "hsdp"), ""),
        (flags[0] if flags else "", ("ddp",), ""),
    ):
        if flag and layout.strategy not in {"none", *strategies}:
            raise RecipeError(
                f"{flag} does not work with --parallel {layout.strategy}{why}",
                fix=f"use --parallel {' or '.join(strategies)}, or leave {flag.split()[0]} out",
            )
    keeps = {"stale", "powersgd", "topk"} & {policy, settings.compress.name if settings.compress else ""}
    if keeps and settings.precision == "fp16":
        raise RecipeError(
            f"{flags[0]} does not work with --precision fp16: it reuses gradients after their scale changed",
            fix="use --precision bf16",
        )
    if len(flags) > 1:
        raise RecipeError(f"{' and '.join(flags[:2])} cannot be combined", fix="use only one of them")
