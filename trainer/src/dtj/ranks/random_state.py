"""Random generators of one rank: a function of (seed, step, verb, stream), independent of earlier draws.

All ranks use the same seed while the model is built, so they start from the same weights. In training every
rank has its own stream (the ranks of one tensor-parallel group share one), seeded again for each step and, if
there are several ranks, for each verb of Run in it. So dropout differs between ranks, and a rank that resumes
at a step, or repeats a verb after the loss of a rank, draws what the uninterrupted run drew. Samples have
their own streams: what a data set draws while it loads a sample is the same on every rank that needs it, and
in worker processes.
"""

import contextlib
import random
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import Any

import numpy as np
import torch

_numpy: Any = np.random  # its stubs lack set_bit_generator
_of_samples = np.random.MT19937()


def seed(value: int) -> None:
    """Seed Python, NumPy and torch (all its devices)."""
    if torch.accelerator.is_available():  # else torch notes the call for later, with its stack: 5 ms
        torch.manual_seed(value)
    _seed_host(value)


def begin(base: int, *, step: int, verb: int, stream: int, devices: Sequence[torch.device]) -> None:
    """Seed the generators that this rank uses; takes about 10 us, a tenth of `seed`.

    verb    0 before the first verb of a step, then 1, 2, ...
    stream  see Layout.stream
    devices of this rank; the generator of each is seeded
    """
    value = _derived_seed(base, step, verb, stream)
    _seed_host(value)
    if devices[0].type != "cpu":
        module = torch.get_device_module(devices[0])
        (module.manual_seed_all if len(devices) > 1 else module.manual_seed)(value)


@contextlib.contextmanager
def of_samples(base: int, *, position: int, first: int) -> Iterator[None]:
    """Context for loading samples on the host: random draws depend on the samples only, not on rank or time.

    position  of the batch in the data
    first     index of the first sample that is loaded
    On exit the generators are as before. Takes about 30 us.
    """
    states = random.getstate(), torch.get_rng_state(), _numpy.get_bit_generator()
    _numpy.set_bit_generator(_of_samples)  # 20 times faster than copying its state
    _seed_host(_derived_seed(base, position, first))
    try:
        yield
    finally:
        random.setstate(states[0])
        torch.set_rng_state(states[1])
        _numpy.set_bit_generator(states[2])


def _derived_seed(*key: int) -> int:
    """Hash a key to a 32-bit seed."""
    return int.from_bytes(blake2b(repr(key).encode(), digest_size=4).digest(), "little")


def _seed_host(value: int) -> None:
    random.seed(value)
    np.random.seed(value % 2**32)  # the largest that NumPy accepts
    torch.default_generator.manual_seed(value)
