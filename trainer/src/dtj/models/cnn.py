"""A small convolutional network for small grayscale images."""

import torch
from torch import nn

from dtj.errors import whole


class SmallCNN(nn.Module):
    """Two convolutions and a linear layer.

    Without dropout and batch statistics, so the result does not depend on how a batch is split over ranks.
    """

    def __init__(self, *, side: int, classes: int, width: int = 32) -> None:
        super().__init__()
        whole(width, "width is", least=1, fix="correct width")
        self.features = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(width, 2 * width, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.classify = nn.Linear(2 * width * (side // 2) ** 2, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """(batch, 1, side, side) float -> (batch, classes) logits."""
        logits: torch.Tensor = self.classify(self.features(images).flatten(1))
        return logits
