"""A map-style dataset: position -> samples. The shuffled order is computed, not stored."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from torch.utils.data import Dataset

from dtj.data import order
from dtj.data.digest import digest
from dtj.data.loader import look_up
from dtj.data.source import Batching, Source
from dtj.data.splitter import Indices, MicroBatch, RankBatch
from dtj.errors import RecipeError

# Divide this many batches in one call: less than 0.01 ms per batch instead of 0.1.
_AHEAD = 64


class Ticket(NamedTuple):
    """One micro-batch for a worker to load; (position, number) identifies the result."""

    position: int
    number: int
    indices: Indices


@dataclass(eq=False)
class Indexed(Source):
    """Every sample exactly once per epoch. A position counts the samples consumed since training started."""

    dataset: Any
    how: Batching
    shuffle: bool

    def __post_init__(self) -> None:
        self._length = length_of(self.dataset)
        batch = self.how.global_batch
        if self.how.drop_last and self._length < batch:
            raise RecipeError(
                f"the dataset has {self._length} samples, fewer than one global batch of {batch}",
                fix="use a smaller global_batch, or leave drop_last and equal_shares out",
            )
        self._look_up = partial(look_up, self.dataset, collate=self.how.loader.collate, seed=self.how.seed)
        self._near: dict[int, RankBatch] = {}
        self._items: Iterator[tuple[int, int, Any]] | None = None
        self._loaded: dict[tuple[int, int], Any] = {}

    @property
    def steps_per_epoch(self) -> int:
        return len(self._starts(0))

    def epoch(self, position: int) -> int:
        return position // self._length

    def at(self, position: int) -> RankBatch:
        if position not in self._near:
            self._near = self._look_ahead(position)
        return self._near[position]

    def load(self, rank_batch: RankBatch, micro_batch: MicroBatch) -> Any:
        if not self.how.loader.workers:
            return self._look_up(micro_batch.indices, position=rank_batch.position)
        wanted = (rank_batch.position, micro_batch.number)
        if wanted not in self._loaded:
            self._loaded = {k: v for k, v in self._loaded.items() if k[0] == rank_batch.position}
            self._loaded[wanted] = self._await(*wanted)
        return self._loaded[wanted]

    def check_alike(self, position: int, gather: Callable[[int], list[int]]) -> str:
        """A warning if the ranks have another first sample: the dataset is divided already; else ""."""
        del position
        if self.how.loader.workers:  # which may need to open their files themselves
            return ""
        first = self._look_up(np.zeros(1, np.int64), collate=_uncollated, position=0)
        if len(set(gather(digest(first)))) == 1:
            return ""
        return (
            f"the dataset {type(self.dataset).__name__} has another first sample on each rank. If it was "
            "divided among the ranks, most samples are never used\n"
            "  fix: pass the whole dataset on every rank, since dtj divides it"
        )

    def close(self) -> None:
        self._items = None

    def state(self, position: int) -> dict[str, int]:
        fixed = {"length": self._length, "seed": self.how.seed, "global_batch": self.how.global_batch}
        return {"position": position} | fixed

    def position(self, state: dict[str, int]) -> int:
        was, now, other = state.get("length"), self._length, "dataset"
        if was is None:
            what = "the checkpoint was made with a stream; this dataset is map-style"
        elif was != now:
            what = f"the checkpoint was made with a dataset of {was} samples; this one has {now}"
        elif state.get("seed") != self.how.seed:
            what = f"the checkpoint was made with seed {state.get('seed')}; this run has seed {self.how.seed}"
            other = "seed"
        else:
            epoch, start = divmod(state["position"], self._length)
            return state["position"] if self._starts(start) else (epoch + 1) * self._length
        raise RecipeError(what, fix=f"use the same {other}, or start a new run without the checkpoint")

    def _await(self, position: int, number: int) -> Any:
        """What the workers loaded; if they are further, as after a loss, restart them here."""
        for at, found, data in self._items if self._items is not None else ():
            if (at, found) == (position, number):
                return data
            if (at, found) > (position, number):
                break
        loading = _Loading(self._look_up)
        self._items = self.how.loader.ahead(loading, of=self.dataset, sampler=self._tickets(position))
        return next(data for at, found, data in self._items if (at, found) == (position, number))

    def _tickets(self, position: int) -> Iterator[Ticket]:
        near: dict[int, RankBatch] = {}
        while True:
            if position not in near:
                near = self._look_ahead(position)
            rank_batch = near[position]
            yield from (Ticket(position, mb.number, mb.indices) for mb in rank_batch.micro_batches)
            if self.how.once and rank_batch.ends_epoch:
                return
            position = rank_batch.following

    def _starts(self, start: int) -> range:
        """Where batches of an epoch begin, from `start` on."""
        end = self._length - self.how.global_batch + 1 if self.how.drop_last else self._length
        return range(start, end, self.how.global_batch)

    def _look_ahead(self, position: int) -> dict[int, RankBatch]:
        """The next batches of the epoch, by position."""
        epoch, start = divmod(position, self._length)
        starts = self._starts(start)[:_AHEAD]
        sizes = [min(self.how.global_batch, self._length - first) for first in starts]
        places = []  # without a sample of its own, the rank takes the first one of the batch as a dummy
        for first, samples in zip(starts, sizes, strict=True):
            mine = self.how.splitter.rank_range(samples) or range(1)
            places.append(np.arange(first + mine.start, first + mine.stop))
        indices = np.concatenate(places)
        if self.shuffle:
            indices = order.shuffled(indices, n=self._length, seed=self.how.seed, epoch=epoch)
        found, end = {}, 0
        for first, samples, place in zip(starts, sizes, places, strict=True):
            end += len(place)
            ends_epoch = not self._starts(first + samples)  # also if the last samples are left out
            micro_batches = self.how.splitter.split(indices[end - len(place) : end], samples=samples)
            at = epoch * self._length + first
            following = (epoch + 1) * self._length if ends_epoch else at + samples
            found[at] = RankBatch(at, following, samples, epoch, ends_epoch, micro_batches)
        return found


def _uncollated(samples: list[Any]) -> list[Any]:
    """For a few samples: the user's own collate function may need more."""
    return samples


class _Loading(Dataset[Any]):
    """Runs in a worker process: ticket -> loaded micro-batch."""

    def __init__(self, look_up: Callable[..., Any]) -> None:
        self._look_up = look_up

    def __getitem__(self, ticket: Ticket) -> tuple[int, int, Any]:
        return ticket.position, ticket.number, self._look_up(ticket.indices, position=ticket.position)


def length_of(dataset: Any) -> int:
    """Number of samples of a map-style dataset; RecipeError if it has no length, no index or no samples."""
    kind, length = type(dataset).__name__, length_if_known(dataset)
    if length is None:
        raise RecipeError(
            f"the dataset {kind} has no length, so it can be neither shuffled nor divided among the ranks",
            fix="define __len__ and __getitem__, or only __iter__ to have it read as a stream",
        )
    if not hasattr(dataset, "__getitem__"):
        raise RecipeError(
            f"the dataset {kind} has a length but no __getitem__",
            fix="define __getitem__, or __iter__ to have it read as a stream",
        )
    if not length:
        raise RecipeError("the dataset is empty", fix="check where its samples come from")
    return length


def length_if_known(dataset: Any) -> int | None:
    """Samples of a data set, or batches of a loader; None if it does not say."""
    try:
        return len(dataset)
    except (TypeError, NotImplementedError):
        return None
