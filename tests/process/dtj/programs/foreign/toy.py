"""What the scripts of this folder share: some data, a model, and a crash that happens once."""

import os
import signal
from pathlib import Path

import torch
from torch import nn

SAMPLES, EPOCHS = 64, 4


def data() -> "torch.utils.data.TensorDataset":
    """Inputs (64, 8) and their product with a fixed matrix, (64, 2)."""
    generator = torch.Generator().manual_seed(11)
    x = torch.randn(SAMPLES, 8, generator=generator)
    return torch.utils.data.TensorDataset(x, torch.tanh(x @ torch.randn(8, 2, generator=generator)))


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))


def die_if_told(out: Path, rank: int, epoch: int) -> None:
    """Kill the rank in the epoch that $CRASH names, once, as a machine fault would."""
    if os.environ.get("CRASH") == f"{rank}@{epoch}" and not (out / "crashed").exists():
        (out / "crashed").touch()
        os.kill(os.getpid(), signal.SIGKILL)


def note(out: Path, rank: int, text: str) -> None:
    """A line about what this rank has seen, for the test."""
    with (out / f"notes-{rank}.txt").open("a") as file:
        print(text, file=file)
