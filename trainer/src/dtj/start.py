"""Environment and flags -> a Run: who this process is, how the model is spread, the process groups joined."""

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
    """Join the job described by the environment, or be alone on a laptop.

    seed    of weights, data order and augmentation; the same on every rank
    device  "cpu", "cuda", ...; by default the accelerator that this machine has
    For the rest see `settings.Settings`; the job's flags win over what the code asks for here.
    """
    if seed < 0:
        raise RecipeError(f"seed is {seed}, expected at least 0", fix="give dtj.init or Recipe another one")
    settings = Settings.read(os.environ, micro_batch=micro_batch, save_every=save_every, log_every=log_every)
    world = World.from_env(os.environ)
    layout = lay_out(settings.parallel, settings.mesh, world)
    devices = choose_devices(world, wish=device, count=settings.devices)
    precision = Precision(settings.precision, devices[0])
    strategy = select(settings, layout, devices[0], half=precision.half)
    strategy.autocast = precision.autocast
    stop = StopFlag()
    groups = ProcessGroups(world, devices, stop, in_place=strategy.heals)
    groups.open()
    atexit.register(groups.close)
    stop.install()
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
