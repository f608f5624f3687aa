"""Ranks that were apart come together again: the newest survivor hands its state to those behind it.

Every rank calls the same verbs of Run in the same order, so (loops begun, steps done, verbs since, ...) is
a place in the program that means the same on each of them. After a loss the ranks compare places; those
behind run on without training until they reach the place of the furthest, and there take over its state.
Usually the survivors are all in the same backward pass and only the newcomer, at place -1, is behind.

    rank 0  step 7, backward      .................. hands over   backward again   ...
    rank 1  step 7, backward      .................. waits        backward again   ...
    rank 2  (new)  init, state -> step 7, backward   takes over   backward         ...
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.distributed as dist


class Place(NamedTuple):
    """Where a rank is in the program, in the order of the fields.

    loops      how often `run.steps` was entered: a newcomer passes all loops that the others have behind them
    step       steps that are done
    is_over    1 where it was agreed that no step is to follow
    verb       verbs done since
    position   of its data, which follows from the rest
    """

    loops: int
    step: int
    is_over: int
    verb: int
    position: int


NOWHERE = Place(-1, 0, 0, 0, 0)


class Handover:
    """What is to be handed over, and where. `target` is None while the ranks are together."""

    def __init__(self) -> None:
        self.target: Place | None = None
        self._behind: list[int] = []
        self._source = 0

    def compare(self, mine: Place, group: "dist.ProcessGroup") -> Place | None:
        """Tell the others where this rank is; where all will meet, None where nobody is anywhere."""
        size = dist.get_world_size(group)
        places = [torch.zeros(len(mine), dtype=torch.int64) for _ in range(size)]
        dist.all_gather(places, torch.tensor(mine), group=group)
        found = [Place(*place.tolist()) for place in places]
        furthest = max(found)
        self._behind = [rank for rank, place in enumerate(found) if place < furthest]
        self._source = found.index(furthest)
        self.target = furthest if self._behind else None
        return None if furthest == NOWHERE else furthest

    def is_behind(self, place: Place) -> bool:
        """This rank has not reached the place where the others wait."""
        return self.target is not None and place[:4] < self.target[:4]

    def exchange(self, group: "dist.ProcessGroup", *, pack: Callable[[], bytes]) -> bytes | None:
        """All are at the target: hand over, wait, or return the state that was taken over."""
        if self.target is None:
            return None
        rank = dist.get_rank(group)
        taken = None
        if rank == self._source:
            data = torch.frombuffer(bytearray(pack()), dtype=torch.uint8)
            for other in self._behind:
                dist.send(torch.tensor([len(data)]), dst=other, group=group)
                dist.send(data, dst=other, group=group)
        elif rank in self._behind:
            length = torch.zeros(1, dtype=torch.int64)
            dist.recv(length, src=self._source, group=group)
            data = torch.empty(int(length), dtype=torch.uint8)
            dist.recv(data, src=self._source, group=group)
            taken = data.numpy().tobytes()
        self.target, self._behind = None, []
        return taken
