"""Random generators of one rank: a function of (seed, step, rank), never of the past.

Ranks share the seed while the model is built, so that all start from the same weights. In training every rank
has a stream of its own, seeded anew for each step: dropout and augmentation do not repeat themselves W times,
and whoever takes up the run at a step, after a crash or from a checkpoint, draws what the unbroken run drew.
"""

import ctypes
import random
from hashlib import blake2b
from typing import Any

import numpy as np
import torch

_MT19937_BYTES = 4 * 625  # 624 words and the position among them


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
    _seeded.value, _seeded.words = value, _words()


def capture(device: torch.device) -> tuple[Any, ...]:
    """The present state of all generators. NumPy tells its own slowly: it is asked only if it was used."""
    words = _words()
    numpy = _seeded.value if words and words == _seeded.words else np.random.get_state()
    on_device = _module(device).get_rng_state() if device.type != "cpu" else None
    return random.getstate(), numpy, torch.get_rng_state(), on_device


def restore(state: tuple[Any, ...], device: torch.device) -> None:
    """Put back what `capture` took."""
    python, numpy, cpu, on_device = state
    random.setstate(python)
    if isinstance(numpy, int):
        np.random.seed(numpy)
    else:
        np.random.set_state(numpy)
    torch.set_rng_state(cpu)
    if on_device is not None:
        _module(device).set_rng_state(on_device)


def _module(device: torch.device) -> Any:
    return torch.get_device_module(device)


class _Seeded:
    """What NumPy's generator was seeded with last, and what it looked like then."""

    value = 0
    words: bytes | None = None


_seeded = _Seeded()


def _words() -> bytes | None:
    """The memory of NumPy's generator, which every draw changes; None where it is not the usual one."""
    generator = np.random.get_bit_generator()  # type: ignore[attr-defined]
    if not isinstance(generator, np.random.MT19937):
        return None
    return ctypes.string_at(generator.ctypes.state_address, _MT19937_BYTES)
