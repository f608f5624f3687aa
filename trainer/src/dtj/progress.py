"""How far this rank is: the one thing that the parts of a run share."""

import operator
from dataclasses import dataclass
from typing import Any

from dtj.data.feed import Feed
from dtj.errors import RecipeError

# Readers of JSON have it exactly, and no run gets there: run.steps(sys.maxsize) is one without end.
_MOST_STEPS = 2**53


@dataclass(kw_only=True)
class Progress:
    """Where this rank is in the program.

    step       steps that are done
    verb       verbs that all ranks did together since the last step, or since the program began
    feed       where the data comes from; None until `run.data`
    loops      how often `run.steps` was entered
    ends_at    step after which all ranks agreed to finish; None where they have not
    needs_warm_up  the next backward is the first with its process groups, see step/backward.py
    """

    step: int = 0
    verb: int = 0
    feed: Feed | None = None
    loops: int = 0
    ends_at: int | None = None
    needs_warm_up: bool = False

    @property
    def has_begun(self) -> bool:
        """`run.steps` was entered."""
        return self.loops > 0

    @property
    def is_over(self) -> bool:
        """No step is to come, whatever the total is."""
        return self.ends_at is not None and self.step >= self.ends_at

    def need_feed(self) -> Feed:
        """Raise RecipeError where there is none."""
        if self.feed is None:
            raise RecipeError("run.steps has no data", fix="call run.data(dataset, global_batch=...) first")
        return self.feed


def count_of_steps(total: Any) -> int:
    """What `run.steps` is given as an int, whoever made it (NumPy, torch); RecipeError where it is none."""
    try:
        count = operator.index(total)
    except TypeError:
        count = -1
    if count < 0:
        raise RecipeError(
            f"run.steps got {total!r}, expected a whole number of at least 0",
            fix="give the steps of the whole training; without an end: run.steps(sys.maxsize)",
        )
    return min(count, _MOST_STEPS)
