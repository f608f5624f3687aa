"""How far this rank is: the one thing that the parts of a run share."""

from dataclasses import dataclass

from dtj.data.feed import Feed
from dtj.errors import RecipeError


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
