"""Global batch -> this rank's share of it, in micro-batches, on the device.

Before it stands `order.py` (which sample comes when), after it `step/backward.py`. The state of a feed is one
integer, the samples consumed so far by all ranks together; it means the same in a world of another size.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import TensorDataset, default_collate

from dtj.data import order
from dtj.errors import RecipeError
from dtj.world import World

Collate = Callable[[list[Any]], Any]
Indices = np.ndarray[Any, np.dtype[np.int64]]

# Batches whose samples are worked out at once.
_AHEAD = 64


class Pair(NamedTuple):
    """What a data set of (input, target) pairs arrives as: `mb.x, mb.y`, or unpacked."""

    x: Any
    y: Any


class Part(NamedTuple):
    """One micro-batch of this rank.

    indices  (k,) int64, samples of the data set
    weight   k / samples of the whole global batch; 0 where this rank has no sample left in a ragged batch and
             computes a stand-in, so that the collectives of the step stay whole
    """

    indices: Indices
    weight: float


@dataclass(frozen=True, kw_only=True)
class Cut:
    """How a rank's share of a global batch is cut into micro-batches.

    micro_batch  samples of each but the last; None takes the whole share at once
    in_lockstep  every rank has equally many, if need be with stand-ins that weigh nothing
    pipelined    all of one size, at most micro_batch; where that is None, so many of them
    """

    micro_batch: int | None = None
    in_lockstep: bool = False
    pipelined: int | None = None

    def size(self, share: int) -> int:
        """Samples of a micro-batch out of `share`, at least 1."""
        if self.pipelined is None:
            return self.micro_batch or share
        at_most = self.micro_batch or max(1, share // self.pipelined)
        return next(size for size in range(min(at_most, share), 0, -1) if share % size == 0)


@dataclass(frozen=True, kw_only=True)
class Batch:
    """One global batch as seen from one rank; samples are fetched while it is iterated.

    samples     in the whole global batch, over all ranks (the last one of an epoch may be smaller)
    epoch       that these samples belong to, from 0
    ends_epoch  True for the last batch of an epoch
    """

    samples: int
    epoch: int
    ends_epoch: bool
    parts: Sequence[Part]
    fetch: Callable[[Part], Any]

    def __iter__(self) -> Iterator[Any]:
        """This rank's micro-batches, on its device."""
        return (self.fetch(part) for part in self.parts)


class Feed:
    """All global batches of a map-style data set, epoch after epoch, each sample exactly once an epoch."""

    def __init__(
        self,
        dataset: Any,
        *,
        global_batch: int,
        world: World,
        device: torch.device,
        cut: Cut,
        seed: int,
        shuffle: bool,
        collate: Collate = default_collate,
    ) -> None:
        """world: who shares the samples; ranks that split one model between them count as one."""
        self.dataset = dataset
        self.length = length_of(dataset)
        if global_batch < 1:
            raise RecipeError(
                f"global_batch is {global_batch}, expected at least 1",
                fix="give the samples of one step, over all ranks",
            )
        self.global_batch = min(global_batch, self.length)
        self.position = 0
        self._world = world
        self._device = device
        self._cut = cut
        self._seed = seed
        self._shuffle = shuffle
        self._collate = collate
        self._ahead: dict[tuple[int, int], Indices] = {}

    @property
    def steps_per_epoch(self) -> int:
        """Batches of one epoch, the ragged last one included."""
        return -(-self.length // self.global_batch)

    @property
    def epoch(self) -> int:
        """Epoch of the next batch, from 0."""
        return self.position // self.length

    def batch(self) -> Batch:
        """The batch at the present position; asking twice gives the same one."""
        epoch, start = divmod(self.position, self.length)
        if (epoch, start) not in self._ahead:
            self._ahead = self._look_ahead(epoch, start)
        samples = self._samples_at(start)
        count = len(range(samples)[self._share(samples)])
        return Batch(
            samples=samples,
            epoch=epoch,
            ends_epoch=start + samples == self.length,
            parts=list(self._split(self._ahead[epoch, start], count=count, samples=samples)),
            fetch=lambda part: fetch(self.dataset, part.indices, device=self._device, collate=self._collate),
        )

    def advance(self, batch: Batch) -> None:
        """The step on `batch` is done; its samples do not come again in this epoch."""
        self.position += batch.samples

    def state_dict(self) -> dict[str, int]:
        """The position, and what it would be meaningless without."""
        return {"position": self.position, "length": self.length, "seed": self._seed}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Raise RecipeError where the data is not what the position was counted in."""
        for name, here in (("length", self.length), ("seed", self._seed)):
            if state[name] != here:
                raise RecipeError(
                    f"the checkpoint counts in data of {name} {state[name]}, now it is {here}: other samples",
                    fix=f"use the same {name}, or start a new run without the checkpoint",
                )
        self.position = state["position"]

    def _samples_at(self, start: int) -> int:
        return min(self.global_batch, self.length - start)

    def _share(self, samples: int) -> slice:
        return order.share(samples, rank=self._world.rank, size=self._world.size)

    def _look_ahead(self, epoch: int, start: int) -> dict[tuple[int, int], Indices]:
        """This rank's samples in the next batches of the epoch, by (epoch, start).

        Asking the order for many at once costs little more than asking for one batch: 0.5 ms become 0.03.
        """
        starts = range(start, self.length, self.global_batch)[:_AHEAD]
        shares = []
        for first in starts:
            samples = self._samples_at(first)
            positions = np.arange(first, first + samples)
            mine = positions[self._share(samples)]
            shares.append(mine if len(mine) else positions[:1])  # the stand-in of a rank without a sample
        found = np.concatenate(shares)
        if self._shuffle:
            found = order.shuffled(found, n=self.length, seed=self._seed, epoch=epoch)
        ends = np.cumsum([len(share) for share in shares])[:-1]
        return {(epoch, first): some for first, some in zip(starts, np.split(found, ends), strict=True)}

    def _split(self, mine: Indices, *, count: int, samples: int) -> Iterator[Part]:
        """Micro-batches of `count` own samples out of all `samples`; a stand-in for none weighs nothing."""
        size = self._cut.size(len(mine))
        for first in range(0, len(mine), size):
            some = mine[first : first + size]
            yield Part(some, len(some) / samples if count else 0.0)
        if self._cut.in_lockstep:
            largest = -(-samples // self._world.size)
            for _ in range(-(-len(mine) // size), -(-largest // self._cut.size(largest))):
                yield Part(mine[:1], 0.0)


def length_of(dataset: Any) -> int:
    """Samples of a map-style data set; RecipeError where it is none, or empty."""
    if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        raise RecipeError(
            f"the data set is a {type(dataset).__name__} without length or index, expected a map-style one",
            fix="give it __len__ and __getitem__; for a stream, index its shards",
        )
    length = len(dataset)
    if not length:
        raise RecipeError("the data set is empty", fix="check where its samples come from")
    return length


def fetch(
    dataset: Any,
    indices: Indices,
    *,
    device: torch.device,
    collate: Collate = default_collate,
) -> Any:
    """The samples at `indices` as one structure of tensors on the device; pairs arrive as `Pair`."""
    if isinstance(dataset, TensorDataset):
        rows = torch.from_numpy(indices)
        found: Any = [column[rows] for column in dataset.tensors]
    elif hasattr(dataset, "__getitems__"):
        found = collate(dataset.__getitems__(indices.tolist()))
    else:
        found = collate([dataset[i] for i in indices.tolist()])
    if type(found) in {list, tuple}:
        found = Pair(*found) if len(found) == 2 else tuple(found)
    return _to_device(found, device)


def _to_device(value: Any, device: torch.device) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to(device, non_blocking=True)
    if isinstance(value, Mapping):
        return {key: _to_device(item, device) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_to_device(item, device) for item in value))
    if isinstance(value, list | tuple):
        return type(value)(_to_device(item, device) for item in value)
    return value
