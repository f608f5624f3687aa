"""Random generators of one rank: seeded, captured into a checkpoint, put back.

Ranks share the seed while the model is built, so that all start from the same weights, and differ from then
on, so that dropout and augmentation do not repeat themselves W times.
"""

import random
from typing import Any

import numpy as np
import torch


def seed(value: int) -> None:
    """Seed Python, NumPy and torch (all its devices)."""
    random.seed(value)
    np.random.seed(value % 2**32)
    torch.manual_seed(value)


def derive(base: int, step: int, rank: int) -> int:
    """A seed of this rank's own, from this step on."""
    return int(np.random.SeedSequence([base, step, 1 + rank]).generate_state(1)[0])


def capture(device: torch.device) -> dict[str, Any]:
    """State of all generators, made of plain numbers and tensors, so that it loads with `weights_only`."""
    version, words, gauss = random.getstate()
    name, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    return {
        "python": (version, list(words), gauss),
        "numpy": (
            str(name),
            torch.from_numpy(np.asarray(keys, dtype=np.int64)),
            int(position),
            int(has_gauss),
            float(cached),
        ),
        "torch": torch.get_rng_state(),
        "device": _module(device).get_rng_state() if device.type != "cpu" else None,
    }


def restore(state: dict[str, Any], device: torch.device) -> None:
    """Put back what `capture` took."""
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    name, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), position, has_gauss, cached))
    torch.set_rng_state(state["torch"])
    if state["device"] is not None and device.type != "cpu":
        _module(device).set_rng_state(state["device"])


def _module(device: torch.device) -> Any:
    return torch.get_device_module(device)
