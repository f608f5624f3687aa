"""After the loss of a rank: the survivor that is furthest hands its state to the ranks behind it.

Every rank calls the same verbs of Run in the same order, so (loops entered, steps done, verbs since, ...) is
a point in the program that means the same on every rank. After a loss the ranks compare their points. Those
behind run on without training until they reach the furthest point, and take over the state there. Usually all
survivors are in the same backward pass and only the newcomer, which has no state, is behind.

    rank 0  step 7, backward      .................. hands over   backward again   ...
    rank 1  step 7, backward      .................. waits        backward again   ...
    rank 2  (new)  init, state -> step 7, backward   takes over   backward         ...

A verb of the present step that a rank skips returns what it returned on the furthest rank, since the program
uses the result.
"""

import contextlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch.distributed as dist

from dtj.checkpoint.save import check_loadable
from dtj.errors import RecipeError
from dtj.ranks import exchange


class ProgramPoint(NamedTuple):
    """How far a rank is in the program; ordered by its fields from the first to the last.

    loops          how often `run.steps` was entered: a newcomer skips the loops that the others have left
    step           steps that are done
    is_over        1 if the ranks agreed that no step follows
    verb           verbs done since the last step
    data_position  of the feed; follows from the other fields
    """

    loops: int
    step: int
    is_over: int
    verb: int
    data_position: int


# Of a rank that does not have the state of the run. Before any other point.
NO_STATE = ProgramPoint(-1, 0, 0, 0, 0)


class Handover:
    """Which rank hands its state to which, and at which point; `target` is None if no rank is behind."""

    def __init__(self) -> None:
        self.target: ProgramPoint | None = None
        self._behind: list[int] = []
        self._source = 0
        self._results: dict[int, Any] = {}

    def compare(
        self, mine: ProgramPoint, group: "dist.ProcessGroup", *, results: Mapping[int, Any]
    ) -> ProgramPoint | None:
        """Share this rank's point; return the furthest point of any rank, or None if no rank has state.

        results  of the verbs that this rank has done since its last step, by their numbers
        """
        points = [ProgramPoint(*each) for each in exchange.all_gather_numbers(mine, group=group)]
        furthest = max(points)
        self._behind = [rank for rank, point in enumerate(points) if point < furthest]
        self._source = points.index(furthest)
        self.target = furthest if self._behind else None
        if self._behind and furthest.verb:
            if mine == furthest:
                if dist.get_rank(group) == self._source:
                    exchange.send(_plain(results), to=self._behind, group=group)
            else:
                self._results = exchange.receive(self._source, group=group)
        return None if furthest == NO_STATE else furthest

    def result_at(self, point: ProgramPoint) -> Any:
        """What the verb that follows `point` returned on the furthest rank; None if that is not known."""
        is_same_step = self.target is not None and point[:3] == self.target[:3]
        return self._results.get(point.verb) if is_same_step else None

    def is_behind(self, point: ProgramPoint) -> bool:
        """The other ranks wait at a point after `point`."""
        return self.target is not None and point[:4] < self.target[:4]

    def exchange(
        self, group: "dist.ProcessGroup", *, state: Callable[[], dict[str, Any]]
    ) -> dict[str, Any] | None:
        """Called by all ranks at the target: send the state, or return the received state; else None."""
        if self.target is None:
            return None
        rank, taken = dist.get_rank(group), None
        if rank == self._source:
            exchange.send(state(), to=self._behind, group=group)
        elif rank in self._behind:
            taken = exchange.receive(self._source, group=group)
        self.target, self._behind = None, []
        return taken


def _plain(results: Mapping[int, Any]) -> dict[int, Any]:
    """Those that another rank can load; a metric may return anything."""
    found: dict[int, Any] = {}
    for number, result in results.items():
        with contextlib.suppress(RecipeError):
            check_loadable(result, "")
            found[number] = result
    return found
