"""`dtj.init`: reads environment and flags, chooses device and strategy, joins the process groups."""

import atexit
import os
from typing import Any

import torch

from dtj.data.worker import leave_losses_to_items
from dtj.errors import whole
from dtj.parallel.layout import lay_out
from dtj.parallel.select import select
from dtj.ranks import random_state
from dtj.ranks.process_groups import ProcessGroups
from dtj.ranks.stop import StopFlag
from dtj.ranks.world import World, check_default_device, choose_devices
from dtj.run import Run
from dtj.settings import Settings
from dtj.step.precision import Precision


def init(*, seed: int = 0, device: str | None = None, **settings: Any) -> Run:
    """Join the distributed job that the environment describes; without one, run as a single process.

    seed      of weights, data order and augmentation; the same on every rank
    device    "cpu", "cuda", ...; default: the accelerator of this machine, else the CPU
    settings  any flag of `dtj run` about training, with underscores: precision="bf16", parallel="fsdp",
              micro_batch=4, checkpoint="/runs/1", compile=True; see settings.py, or `dtj run --help`
    The job's flags take precedence over these arguments. RecipeError for an unknown or invalid one.
    """
    seed = whole(seed, "seed is", least=0, fix="pass another seed to dtj.init or Recipe")
    check_default_device()
    chosen = Settings.read(os.environ, **settings)
    world = World.from_env(os.environ)
    layout = lay_out(chosen.parallel, chosen.mesh, world)
    devices = choose_devices(world, requested=device, count=chosen.devices)
    precision = Precision(chosen.precision, devices[0])
    strategy = select(chosen, layout, devices[0], half=precision.half)
    strategy.autocast = precision.autocast
    leave_losses_to_items()
    groups = ProcessGroups(world, devices, StopFlag(), in_place=strategy.heals)
    groups.open()
    atexit.register(groups.close)
    random_state.seed(seed)
    if chosen.tf32:
        torch.set_float32_matmul_precision("high")
    return Run(groups=groups, settings=chosen, seed=seed, strategy=strategy, precision=precision)
