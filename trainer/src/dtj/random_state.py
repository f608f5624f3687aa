"""Random generators of one rank: a function of (seed, step, verb, stream), never of the past.

Ranks share the seed while the model is built, so that all start from the same weights. In training every rank
has a stream of its own (those of one tensor-parallel group share it), seeded anew for each step and for each
verb of Run in it: dropout and augmentation do not repeat themselves W times, and whoever takes up the run at
a step, or repeats a verb after the loss of a rank, draws what the unbroken run drew.
"""

import random
from hashlib import blake2b

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


def begin(base: int, *, step: int, verb: int, stream: int, device: torch.device) -> None:
    """Seed the generators that this rank uses; some 10 us, a tenth of `seed`.

    verb    0 for what a step does before its first verb, then 1, 2, ...
    stream  see Layout.stream
    """
    name = f"{base} {step} {verb} {stream}".encode()
    value = int.from_bytes(blake2b(name, digest_size=4).digest(), "little")
    random.seed(value)
    np.random.seed(value)
    torch.default_generator.manual_seed(value)
    if device.type != "cpu":
        torch.get_device_module(device).manual_seed(value)
