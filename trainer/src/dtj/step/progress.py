"""How far this rank is: the state that the parts of a run share."""

from dataclasses import dataclass
from typing import Any

from dtj.data.feed import Feed
from dtj.errors import whole

# The largest number that every JSON reader keeps exactly; run.steps(sys.maxsize) means no limit.
_MOST_STEPS = 2**53


@dataclass(kw_only=True)
class Progress:
    """How far this rank is in the program.

    step       steps that are done
    verb       verbs that all ranks did together since the last step, or since the program began
    feed       the source of the batches; of a run without data, an empty one
    loops      how often `run.steps` was entered
    ends_at    step after which all ranks agreed to finish; None if they have not
    needs_warm_up  the next backward is the first with these process groups, see step/backward.py
    """

    step: int = 0
    verb: int = 0
    feed: Feed
    loops: int = 0
    ends_at: int | None = None
    needs_warm_up: bool = False

    def advance(self) -> None:
        """The step on the present batch is done."""
        self.feed.advance()
        self.step, self.verb = self.step + 1, 0

    @property
    def has_begun(self) -> bool:
        """`run.steps` was entered."""
        return self.loops > 0

    @property
    def is_over(self) -> bool:
        """The ranks agreed to finish, and the last step is done."""
        return self.ends_at is not None and self.step >= self.ends_at


def whole_steps(total: Any) -> int:
    """The argument of `run.steps` as an int, also from NumPy or torch; RecipeError if it is not whole."""
    fix = "pass the total number of steps of the training; for no limit: run.steps(sys.maxsize)"
    return min(whole(total, "run.steps got", least=0, fix=fix), _MOST_STEPS)
