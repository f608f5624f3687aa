"""Recipes that need no download. Each is a function whose parameters are its command-line arguments."""

import math

from dtj.errors import RecipeError


def check_rate(lr: float) -> None:
    """RecipeError unless the learning rate is a positive number."""
    if not 0 < lr < math.inf:
        raise RecipeError(f"lr is {lr}, expected a number above 0", fix="correct lr, e.g. lr=1e-3")
