"""Handwritten digits of 8x8 pixels: the 1,797 samples in the scikit-learn package."""

import math
from typing import Any

import torch
from torch import nn
from torch.optim import Adam, Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler
from torch.utils.data import TensorDataset

from dtj.data import order
from dtj.errors import package
from dtj.models.cnn import SmallCNN
from dtj.recipe import Recipe
from dtj.recipes import check_rate

_HELD_OUT = 360  # a fifth of the samples
_SPLIT_SEED = 8


def recipe(
    epochs: int = 20, lr: float = 2e-3, global_batch: int = 64, width: int = 32, seed: int = 0
) -> Recipe:
    """Classify handwritten digits with a small CNN: about 98 % held-out accuracy within a minute.

    The result is the same, except for rounding, with any number of ranks.
    """
    check_rate(lr)
    train, held_out = split()
    return Recipe(
        model=lambda: SmallCNN(side=8, classes=10, width=width),
        data=train,
        loss=lambda model, mb: nn.functional.cross_entropy(model(mb.x), mb.y),
        optimizer=lambda parameters: Adam(parameters, lr=lr),
        schedule=_cosine,
        global_batch=global_batch,
        epochs=epochs,
        held_out=held_out,
        score=_is_right,
        seed=seed,
    )


def split() -> tuple[TensorDataset, TensorDataset]:
    """(train, held out): images (n, 1, 8, 8) float32 in [0, 1], labels (n,) int64; always the same split."""
    datasets = package(
        "sklearn.datasets",
        "the digits data set is part of scikit-learn, which is not installed",
        fix="pip install scikit-learn",
    )
    bunch = datasets.load_digits()
    images = torch.tensor(bunch.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(bunch.target, dtype=torch.int64)
    shuffle = torch.from_numpy(
        order.shuffled(torch.arange(len(labels)).numpy(), n=len(labels), seed=_SPLIT_SEED, epoch=0)
    )
    train, held_out = shuffle[_HELD_OUT:], shuffle[:_HELD_OUT]
    return TensorDataset(images[train], labels[train]), TensorDataset(images[held_out], labels[held_out])


def _cosine(optimizer: Optimizer, steps: int) -> LRScheduler:
    """To zero at the last step. CosineAnnealingLR would take its number of steps from a checkpoint."""
    return LambdaLR(optimizer, lambda step: (1 + math.cos(math.pi * step / max(1, steps))) / 2)


def _is_right(model: nn.Module, mb: Any) -> torch.Tensor:
    right: torch.Tensor = model(mb.x).argmax(1) == mb.y
    return right
