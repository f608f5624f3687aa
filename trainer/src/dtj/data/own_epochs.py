"""Where each rank's epochs began, of a loader without a length.

Only when no batch comes a rank knows that its epoch has ended. So each rank begins its next epoch by itself,
and ranks with more batches than others are in an earlier one. But a position must be the same on all ranks:
it is the number of batches that each rank has read. To continue there a rank needs an epoch of its own that
began before. It need not be the last one: the rank reads on from there, into the next epochs.

Every rank has the entries of all ranks, because a checkpoint and a rank that hands over its state have one
state for all of them. Those of the other ranks are as old as the last `share`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple


class Begun(NamedTuple):
    """An epoch, and the position at which a rank began it."""

    epoch: int
    at: int


class OwnEpochs:
    """Of one rank among those with different batches; what it knows of the others is only for the state."""

    def __init__(self, *, rank: int, size: int) -> None:
        self._rank, self._size = rank, size
        self._of_all = [Begun(0, 0)] * size
        self._mine = [Begun(0, 0)]  # a step that is loaded, but not done, may have begun the last ones

    def begin(self, epoch: int, at: int) -> None:
        """This rank begins an epoch at a position."""
        self._mine = [each for each in self._mine if each.at < at] + [Begun(epoch, at)]

    def before(self, position: int) -> Begun:
        """The last epoch of this rank that began at a position or before."""
        return next((each for each in reversed(self._mine) if each.at <= position), self._mine[0])

    def share(self, position: int, gather: Callable[[Sequence[int]], list[list[int]]]) -> None:
        """Tell all ranks. gather: this rank's numbers -> those of all, and of ranks with equal batches."""
        mine = self.before(position)
        self._mine = [each for each in self._mine if each.at >= mine.at]
        found = {rank: Begun(epoch, at) for rank, epoch, at in gather((self._rank, *mine))}
        self._of_all = [found[rank] for rank in range(self._size)]

    def state(self, position: int) -> dict[str, list[int]]:
        """Of all ranks, for a checkpoint at a position."""
        found = list(self._of_all)
        found[self._rank] = self.before(position)
        return {"epochs": [each.epoch for each in found], "begun": [each.at for each in found]}

    def load(self, state: Mapping[str, Any], position: int) -> None:
        """Load what `state` returned at a position; of another number of ranks: begin that epoch again."""
        found = [Begun(*each) for each in zip(state["epochs"], state["begun"], strict=True)]
        if len(found) != self._size:
            found = [Begun(found[0].epoch, position)] * self._size
        self._of_all, self._mine = found, [found[self._rank]]
