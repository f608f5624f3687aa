"""Random generators of one rank: a function of (seed, step, rank), never of the past.

Ranks share the seed while the model is built, so that all start from the same weights. In training every rank
has a stream of its own, seeded anew for each step: dropout and augmentation do not repeat themselves W times,
and whoever takes up the run at a step, after a crash or from a checkpoint, draws what the unbroken run drew.
"""

import random
from hashlib import blake2b
from typing import Any

import numpy as np
import torch


def seed(value: int) -> None:
    """Seed Python, NumPy and torch (all its devices)."""
    random.seed(value)
    np.random.seed(value % 2**32)
    torch.manual_seed(value)


def seed_for(*what: int) -> None:
    """Seed as `seed`, with a number for this combination; for processes that load samples."""
    seed(int(np.random.SeedSequence(what).generate_state(1)[0]))


def begin_step(base: int, step: int, rank: int, device: torch.device) -> None:
    """Seed the generators that this rank uses for one step; about 8 us, a tenth of `seed`."""
    value = int.from_bytes(blake2b(f"{base} {step} {rank}".encode(), digest_size=4).digest(), "little")
    random.seed(value)
    np.random.seed(value)
    torch.default_generator.manual_seed(value)
    if device.type != "cpu":
        _module(device).manual_seed(value)


def capture(device: torch.device) -> tuple[Any, ...]:
    """The present state of all generators."""
    on_device = _module(device).get_rng_state() if device.type != "cpu" else None
    return random.getstate(), np.random.get_state(), torch.get_rng_state(), on_device


def restore(state: tuple[Any, ...], device: torch.device) -> None:
    """Put back what `capture` took."""
    python, numpy, cpu, on_device = state
    random.setstate(python)
    np.random.set_state(numpy)
    torch.set_rng_state(cpu)
    if on_device is not None:
        _module(device).set_rng_state(on_device)


def _module(device: torch.device) -> Any:
    return torch.get_device_module(device)
