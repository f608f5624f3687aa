"""What a feed loads from: a position in the data -> this rank's part of the batch there.

Comes after `splitter.py` and `loader.py`; `indexed.py`, `stream.py` and `user_loader.py` are the sources.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dtj.data.loader import Loader
from dtj.data.splitter import MicroBatch, RankBatch, Splitter

# A position is epoch x EPOCH + what that epoch has consumed: one integer, even if the length is unknown.
EPOCH = 1 << 40


class Source:
    """Loads the samples of a position. The class itself is the source of a run without data."""

    @property
    def steps_per_epoch(self) -> int | None:
        """Including a smaller last batch, unless that is left out; None if it is unknown."""
        return None

    def epoch(self, position: int) -> int:
        """Epoch at a position, from 0."""
        return position // EPOCH

    def at(self, position: int) -> RankBatch:
        """The batch that starts at `position`; calling it again returns the same one. Waits until it is read.

        RecipeError if there are no samples, or fewer than the data's length says.
        """
        return RankBatch(position, position, samples=0, epoch=0, ends_epoch=False, micro_batches=())

    def load(self, rank_batch: RankBatch, micro_batch: MicroBatch) -> Any:
        """One micro-batch of the batch that `at` returned last, in host memory."""
        raise AssertionError("a run without data has no micro-batches")

    def divisor(self, rank_batch: RankBatch) -> int:
        """See Batch: the samples, if all ranks know how many the others have."""
        return max(1, rank_batch.samples)

    def share(self, position: int, gather: Callable[[Sequence[int]], list[list[int]]]) -> None:
        """Tell the other ranks what only this rank knows, and a state of all ranks must have. Collective.

        gather  this rank's numbers -> those of all ranks
        """

    def check_alike(self, position: int, gather: Callable[[int], list[int]]) -> str:
        """See Feed.check_alike. gather: this rank's number -> those of all ranks."""
        del position, gather
        return ""

    def close(self) -> None:
        """Stop the worker processes."""

    def state(self, position: int) -> dict[str, Any]:
        """A position in a readable form, and what must be the same for it to be valid."""
        del position
        return {}

    def position(self, state: dict[str, Any]) -> int:
        """The position of a state; RecipeError if that was saved with other data."""
        del state
        return 0


@dataclass(frozen=True, kw_only=True)
class Batching:
    """How the samples of a data set become batches.

    global_batch  samples of one step, over all ranks
    drop_last     leave out a smaller last batch of each epoch
    once          do not read beyond the end of an epoch
    """

    global_batch: int
    splitter: Splitter
    loader: Loader
    seed: int = 0
    drop_last: bool = False
    once: bool = False
