"""Your own recipe: dtj train --nproc 2 ./examples/my_recipe.py:recipe epochs=3 lr=0.02

The function's signature is its command line: dtj train ./examples/my_recipe.py:recipe --help
"""

import torch
from torch import nn
from torch.utils.data import TensorDataset

from dtj import Recipe


def recipe(epochs: int = 5, lr: float = 0.01, global_batch: int = 64, width: int = 32) -> Recipe:
    """Classify points as inside or outside a circle."""
    points = torch.rand(2500, 2, generator=torch.Generator().manual_seed(0)) * 2 - 1
    inside = (points.square().sum(1) < 0.6).long()
    return Recipe(
        model=lambda: nn.Sequential(nn.Linear(2, width), nn.Tanh(), nn.Linear(width, 2)),
        data=TensorDataset(points[:2000], inside[:2000]),
        loss=lambda model, mb: nn.functional.cross_entropy(model(mb.x), mb.y),
        optimizer=lambda parameters: torch.optim.Adam(parameters, lr=lr),
        global_batch=global_batch,
        epochs=epochs,
        held_out=TensorDataset(points[2000:], inside[2000:]),
        score=lambda model, mb: model(mb.x).argmax(1) == mb.y,
    )
