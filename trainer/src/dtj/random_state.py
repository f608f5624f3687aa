"""Random generators of one rank: a function of (seed, step, verb, stream), never of the past.

Ranks share the seed while the model is built, so that all start from the same weights. In training every rank
has a stream of its own (those of one tensor-parallel group share it), seeded anew for each step and for each
verb of Run in it: dropout does not repeat itself W times, and whoever takes up the run at a step, or repeats
a verb after the loss of a rank, draws what the unbroken run drew. Samples have streams of their own: what a
data set draws while it loads them is the same on all ranks that need them, and in worker processes.
"""

import contextlib
import random
from collections.abc import Iterator
from hashlib import blake2b
from typing import Any

import numpy as np
import torch

_numpy: Any = np.random  # whose stubs do not know how its generator is exchanged
_of_samples = np.random.MT19937()


def seed(value: int) -> None:
    """Seed Python, NumPy and torch (all its devices)."""
    torch.manual_seed(value)
    _seed_host(value)


def begin(base: int, *, step: int, verb: int, stream: int, device: torch.device) -> None:
    """Seed the generators that this rank uses; some 10 us, a tenth of `seed`.

    verb    0 for what a step does before its first verb, then 1, 2, ...
    stream  see Layout.stream
    """
    value = _number(base, step, verb, stream)
    _seed_host(value)
    if device.type != "cpu":
        torch.get_device_module(device).manual_seed(value)


@contextlib.contextmanager
def of_samples(base: int, *, position: int, first: int) -> Iterator[None]:
    """Around the loading of samples on the host: noise depends on them, not on who loads them, or when.

    position, first  of the batch in the data, and the first of its samples that is loaded
    What is drawn in here leaves the generators as they were; it takes some 30 us.
    """
    states = random.getstate(), torch.get_rng_state(), _numpy.get_bit_generator()
    _numpy.set_bit_generator(_of_samples)  # a twentieth of the time that copying its state takes
    _seed_host(_number(base, position, first))
    try:
        yield
    finally:
        random.setstate(states[0])
        torch.set_rng_state(states[1])
        _numpy.set_bit_generator(states[2])


def _number(*place: int) -> int:
    """32 bits that follow from a place and look like chance."""
    return int.from_bytes(blake2b(repr(place).encode(), digest_size=4).digest(), "little")


def _seed_host(value: int) -> None:
    random.seed(value)
    np.random.seed(value % 2**32)  # NumPy takes no more
    torch.default_generator.manual_seed(value)
