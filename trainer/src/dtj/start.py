"""`dtj.init`: reads environment and flags, chooses device and strategy, joins the process groups."""

import atexit
import os

import torch

from dtj import random_state
from dtj.errors import RecipeError
from dtj.parallel.layout import lay_out
from dtj.process_groups import ProcessGroups
from dtj.run import Run
from dtj.settings import Settings
from dtj.step.precision import Precision
from dtj.stop import StopFlag
from dtj.strategies import select
from dtj.world import World, choose_devices


def init(
    *,
    seed: int = 0,
    device: str | None = None,
    micro_batch: int | None = None,
    save_every: int | None = None,
    log_every: int | None = None,
) -> Run:
    """Join the distributed job that the environment describes; without one, run as a single process.

    seed         of weights, data order and augmentation; the same on every rank
    device       "cpu", "cuda", ...; default: the accelerator of this machine, else the CPU
    micro_batch  maximum number of samples per forward pass of a rank
    save_every   steps between checkpoints
    log_every    steps between log lines
    The job's flags (settings.py) take precedence over these arguments.
    """
    if seed < 0:
        raise RecipeError(
            f"seed is {seed}, expected at least 0", fix="pass another seed to dtj.init or Recipe"
        )
    settings = Settings.read(os.environ, micro_batch=micro_batch, save_every=save_every, log_every=log_every)
    world = World.from_env(os.environ)
    layout = lay_out(settings.parallel, settings.mesh, world)
    devices = choose_devices(world, requested=device, count=settings.devices)
    precision = Precision(settings.precision, devices[0])
    strategy = select(settings, layout, devices[0], half=precision.half)
    strategy.autocast = precision.autocast
    stop = StopFlag()
    groups = ProcessGroups(world, devices, stop, in_place=strategy.heals)
    groups.open()
    atexit.register(groups.close)
    random_state.seed(seed)
    if settings.tf32:
        torch.set_float32_matmul_precision("high")
    return Run(
        world=world,
        devices=devices,
        groups=groups,
        settings=settings,
        stop=stop,
        seed=seed,
        strategy=strategy,
        precision=precision,
    )
