"""Train one PyTorch model on one laptop or on many nodes, with your own training loop.

Every public name is loaded when it is first used, so `dtj --help` and the launcher's error messages do not
wait for torch. Read `loop.py` first: it is the built-in training loop, written only with the verbs of `Run`.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dtj.data.feed import Batch
    from dtj.data.loader import Pair
    from dtj.errors import CheckpointError, DtjError, RecipeError, Stopped
    from dtj.ranks.node import first_on_node
    from dtj.recipe import Recipe
    from dtj.run import Run
    from dtj.start import init
    from dtj.step.ema import EMA
    from dtj.telemetry import sinks

__version__ = "0.1.0"

__all__ = [
    "EMA",
    "Batch",
    "CheckpointError",
    "DtjError",
    "Pair",
    "Recipe",
    "RecipeError",
    "Run",
    "Stopped",
    "first_on_node",
    "init",
    "sinks",
]

_HOME = {
    "Batch": "dtj.data.feed",
    "CheckpointError": "dtj.errors",
    "DtjError": "dtj.errors",
    "EMA": "dtj.step.ema",
    "Pair": "dtj.data.loader",
    "Recipe": "dtj.recipe",
    "RecipeError": "dtj.errors",
    "Run": "dtj.run",
    "Stopped": "dtj.errors",
    "first_on_node": "dtj.ranks.node",
    "init": "dtj.start",
    "sinks": "dtj.telemetry.sinks",
}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'dtj' has no attribute {name!r}")
    home = import_module(_HOME[name])
    return home if name == "sinks" else getattr(home, name)
