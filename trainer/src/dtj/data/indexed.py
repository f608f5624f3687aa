"""A map-style data set: position -> samples, in a shuffled order that is worked out, not stored."""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from typing import Any, NamedTuple

import numpy as np
from torch.utils.data import Dataset

from dtj.data import order
from dtj.data.cut import Cut, Indices, Part, Share
from dtj.data.load import Loader, look_up
from dtj.errors import RecipeError

# Batches whose samples are worked out at once: 0.5 ms for one batch become 0.03.
_AHEAD = 64


class Ticket(NamedTuple):
    """One micro-batch for a worker to load, and under which name it comes back."""

    position: int
    number: int
    indices: Indices


class Indexed:
    """Every sample exactly once an epoch. A position is the samples consumed since the start of training."""

    def __init__(
        self,
        dataset: Any,
        *,
        global_batch: int,
        cut: Cut,
        seed: int,
        shuffle: bool,
        once: bool,
        loader: Loader,
    ) -> None:
        self._length = length_of(dataset)
        self._global_batch = global_batch
        self._dataset = dataset
        self._look_up = partial(look_up, dataset, collate=loader.collate, seed=seed)
        self._cut = cut
        self._seed = seed
        self._shuffle = shuffle
        self._once = once
        self._loader = loader
        self._near: dict[int, Indices] = {}
        self._items: Iterator[tuple[int, int, Any]] | None = None
        self._loaded: dict[tuple[int, int], Any] = {}

    @property
    def steps_per_epoch(self) -> int:
        """The ragged last batch included."""
        return -(-self._length // self._global_batch)

    def epoch(self, position: int) -> int:
        """Epoch of the sample at a position, from 0."""
        return position // self._length

    def at(self, position: int) -> Share:
        """The batch that begins there; asking twice gives the same one."""
        if position not in self._near:
            self._near = dict(self._look_ahead(position))
        return self._share(position, self._near[position])

    def load(self, share: Share, part: Part) -> Any:
        """One of its micro-batches, in the memory of the host."""
        if not self._loader.workers:
            return self._look_up(part.indices, position=share.position)
        wanted = (share.position, part.number)
        if wanted not in self._loaded:
            self._loaded = {k: v for k, v in self._loaded.items() if k[0] == share.position}
            self._loaded[wanted] = self._await(*wanted)
        return self._loaded[wanted]

    def after(self, share: Share) -> int:
        """The position behind a batch."""
        return share.position + share.samples

    def close(self) -> None:
        """Let the workers go."""
        self._items = None

    def state(self, position: int) -> dict[str, int]:
        """A position, and what it would be meaningless without."""
        return {"position": position, "length": self._length, "seed": self._seed}

    def position(self, state: dict[str, int]) -> int:
        """Raise RecipeError where the data is not what the position was counted in."""
        for name, here in (("length", self._length), ("seed", self._seed)):
            if state.get(name) != here:
                raise RecipeError(
                    f"the checkpoint counts in data of {name} {state.get(name)}, now it is {here}: "
                    "other samples",
                    fix=f"use the same {name}, or start a new run without the checkpoint",
                )
        return state["position"]

    def _await(self, position: int, number: int) -> Any:
        """What the workers bring; where they are elsewhere, as after a loss, they begin here anew."""
        for at, found, data in self._items if self._items is not None else ():
            if (at, found) == (position, number):
                return data
            if at != position or found > number:
                break
        loading = _Loading(self._look_up)
        self._items = self._loader.ahead(loading, of=self._dataset, sampler=self._tickets(position))
        return next(data for at, found, data in self._items if (at, found) == (position, number))

    def _tickets(self, position: int) -> Iterator[Ticket]:
        near: dict[int, Indices] = {}
        while True:
            if position not in near:
                near = dict(self._look_ahead(position))
            share = self._share(position, near[position])
            yield from (Ticket(position, part.number, part.indices) for part in share.parts)
            if self._once and share.ends_epoch:
                return
            position = self.after(share)

    def _share(self, position: int, mine: Indices) -> Share:
        epoch, start = divmod(position, self._length)
        samples = min(self._global_batch, self._length - start)
        ends_epoch = start + samples == self._length
        return Share(position, samples, epoch, ends_epoch, self._cut.split(mine, samples=samples))

    def _look_ahead(self, position: int) -> Iterator[tuple[int, Indices]]:
        """This rank's samples in the next batches of the epoch, by position."""
        epoch, start = divmod(position, self._length)
        starts = range(start, self._length, self._global_batch)[:_AHEAD]
        shares = []
        for first in starts:
            mine = self._cut.mine(min(self._global_batch, self._length - first))
            shares.append(first + np.arange(mine.start, mine.stop) if mine else np.array([first]))
        found = np.concatenate(shares)
        if self._shuffle:
            found = order.shuffled(found, n=self._length, seed=self._seed, epoch=epoch)
        ends = np.cumsum([len(share) for share in shares])[:-1]
        return zip(count(position, self._global_batch), np.split(found, ends), strict=False)


class _Loading(Dataset[Any]):
    """What a worker does with a ticket."""

    def __init__(self, look_up: Callable[..., Any]) -> None:
        self._look_up = look_up

    def __getitem__(self, ticket: Ticket) -> tuple[int, int, Any]:
        return ticket.position, ticket.number, self._look_up(ticket.indices, position=ticket.position)


def length_of(dataset: Any) -> int:
    """Samples of a map-style data set; RecipeError where it has no length, or none at all."""
    kind = type(dataset).__name__
    try:
        length = len(dataset)
    except (TypeError, NotImplementedError) as error:
        raise RecipeError(
            f"the data set {kind} has no length, so that it can be neither shuffled nor divided",
            fix="give it __len__ and __getitem__, or only __iter__: then it is read as a stream",
        ) from error
    if not hasattr(dataset, "__getitem__"):
        raise RecipeError(
            f"the data set {kind} has a length but no index",
            fix="give it __getitem__, or __iter__: then it is read as a stream",
        )
    if not length:
        raise RecipeError("the data set is empty", fix="check where its samples come from")
    return int(length)
