"""A stream: a dataset that can only be read in order, from the start in each epoch.

Every rank reads the whole stream and keeps its own part. So each sample is used exactly once per epoch at any
world size, even if it changes, and all ranks reach the end at the same batch. This requires that the stream
yields the same samples in the same order on every rank, and each time that an epoch is read. Put costly work
(decoding) into `collate`, which only gets the rank's own samples.
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from torch.utils.data import IterableDataset, get_worker_info
from torch.utils.data._utils import worker as torch_worker

from dtj.data.digest import digest
from dtj.data.indexed import length_if_known
from dtj.data.loader import as_batch
from dtj.data.source import EPOCH, Batching, Source
from dtj.data.splitter import MicroBatch, RankBatch
from dtj.errors import RecipeError
from dtj.ranks import random_state

# Samples that the ranks compare at the start.
_COMPARED = 8


class _Loaded(NamedTuple):
    """This rank's part of a global batch.

    data    its collated micro-batches
    digest  of the first samples of the global batch, which every rank must have read alike
    """

    rank_batch: RankBatch
    data: list[Any]
    digest: int


@dataclass(eq=False)
class Streamed(Source):
    """Batches in the order of the stream; calls its `set_epoch(n)` and `skip(n)` if it has them."""

    dataset: Any
    how: Batching

    def __post_init__(self) -> None:
        if hasattr(self.dataset, "__next__"):
            raise RecipeError(
                f"the dataset is a {type(self.dataset).__name__}, which can be read only once",
                fix="pass an object whose __iter__ starts from the beginning each time, "
                "e.g. a torch.utils.data.IterableDataset",
            )
        self._items: Iterator[_Loaded] | None = None
        self._present: _Loaded | None = None
        self._moved: dict[int, int] = {}  # a position without a batch -> that of the batch after it

    @property
    def steps_per_epoch(self) -> int | None:
        """By the stream's length; an epoch lasts as long as it yields samples, whatever that says."""
        length = length_if_known(self.dataset)
        if length is None:
            return None
        whole, rest = divmod(length, self.how.global_batch)
        return whole + (rest > 0 and not self.how.drop_last)

    def at(self, position: int) -> RankBatch:
        """The first batch of the next epoch, if the rest of this one is less than a batch, and left out."""
        position = self._moved.get(position, position)
        if self._present is None or self._present.rank_batch.position != position:
            self._present = next(self._items, None) if self._items is not None else None
        if self._present is None or self._present.rank_batch.position != position:
            self._items = self.how.loader.ahead(_Reading(self.dataset, self.how, position), of=self.dataset)
            self._present = next(self._items)
            self._moved = {position: self._present.rank_batch.position}
        return self._present.rank_batch

    def load(self, rank_batch: RankBatch, micro_batch: MicroBatch) -> Any:
        assert self._present is not None and self._present.rank_batch.position == rank_batch.position  # noqa: PT018
        return self._present.data[micro_batch.number]

    def check_alike(self, position: int, gather: Callable[[int], list[int]]) -> str:
        """RecipeError on all ranks if they read different samples at `position`."""
        self.at(position)
        assert self._present is not None
        if len(set(gather(self._present.digest))) > 1:
            raise RecipeError(
                f"the stream {type(self.dataset).__name__} yields other samples on each rank; dtj divides a "
                "stream itself, so most samples would never be used",
                fix="turn off the division among ranks in your data library, or pass a loader of your own to "
                "run.loader; a stream in random order must seed its generator alike on every rank",
            )
        return ""

    def close(self) -> None:
        self._items = None

    def state(self, position: int) -> dict[str, int]:
        epoch, consumed = divmod(position, EPOCH)
        return {"epoch": epoch, "consumed": consumed, "global_batch": self.how.global_batch}

    def position(self, state: dict[str, int]) -> int:
        if not {"epoch", "consumed"} <= state.keys():
            raise RecipeError(
                "the checkpoint was made with a map-style dataset; this one is a stream",
                fix="use the same data, or start a new run without the checkpoint",
            )
        return state["epoch"] * EPOCH + state["consumed"]


@dataclass(eq=False)
class _Reading(IterableDataset[_Loaded | RecipeError]):
    """Reads the stream from a position on. Each of N workers reads all of it and collates every Nth batch.

    If the stream has no sample at that position, it yields a RecipeError.
    """

    stream: Any
    how: Batching
    position: int
    is_short: bool = False  # less than a whole batch was found, which is left out

    def __iter__(self) -> Iterator[_Loaded | RecipeError]:
        worker = get_worker_info()
        mine, workers = (worker.id, worker.num_workers) if worker else (0, 1)
        if worker:
            _pose_as_only_worker(worker)
        is_empty = True
        for number, (rank_batch, samples) in enumerate(self._batches()):
            is_empty = False
            if number % workers == mine:
                yield self._collated(rank_batch, samples, digest(samples[:_COMPARED]) if number == 0 else 0)
        if is_empty:
            yield self._nothing_left()

    def _collated(self, rank_batch: RankBatch, samples: list[Any], compared: int) -> _Loaded:
        start = rank_batch.position % EPOCH
        first = int(rank_batch.micro_batches[0].indices[0])
        with random_state.of_samples(self.how.seed, position=rank_batch.position, first=first):
            data = [
                as_batch(self.how.loader.collate([samples[i - start] for i in mb.indices.tolist()]))
                for mb in rank_batch.micro_batches
            ]
        return _Loaded(rank_batch, data, compared)

    def _batches(self) -> Iterator[tuple[RankBatch, list[Any]]]:
        """(this rank's part, all samples) of each global batch; ends at an epoch with no samples left.

        The position may be followed by less than a batch, if an earlier run had smaller ones.
        """
        epoch, start = divmod(self.position, EPOCH)
        while rest := self._read(samples := self._epoch(epoch, skip=start), epoch, start):
            batch = self._unless_left_out(rest)
            self.is_short = not batch
            if not batch and not start:
                return
            while batch:
                following = self._unless_left_out(self._read(samples, epoch, start + len(batch)))
                # A rank without a sample of its own takes the first one as a dummy.
                mine = self.how.splitter.rank_range(len(batch)) or range(1)
                indices = start + np.arange(mine.start, mine.stop)
                micro = self.how.splitter.split(indices, samples=len(batch))
                at, start = epoch * EPOCH + start, start + len(batch)
                then = epoch * EPOCH + start if following else (epoch + 1) * EPOCH
                yield RankBatch(at, then, len(batch), epoch, not following, micro), batch
                batch = following
            if self.how.once:
                return
            epoch, start = epoch + 1, 0

    def _unless_left_out(self, batch: list[Any]) -> list[Any]:
        """The samples of a global batch; empty at the end of the epoch."""
        return [] if self.how.drop_last and len(batch) < self.how.global_batch else batch

    def _read(self, samples: Iterator[Any], epoch: int, start: int, count: int | None = None) -> list[Any]:
        """At most `count` samples, or a batch. What the stream draws depends on the position only."""
        with self._drawing(epoch, start):
            return list(islice(samples, self.how.global_batch if count is None else count))

    def _epoch(self, epoch: int, *, skip: int) -> Iterator[Any]:
        """The samples after the first `skip`, which are read as they were before, with the same draws."""
        if hasattr(self.stream, "set_epoch"):
            self.stream.set_epoch(epoch)
        if skip and hasattr(self.stream, "skip"):
            with self._drawing(epoch, skip):
                return iter(self.stream.skip(skip))
        with self._drawing(epoch, 0):
            samples: Iterator[Any] = iter(self.stream)
        for start in range(0, skip, self.how.global_batch):
            self._read(samples, epoch, start, min(self.how.global_batch, skip - start))
        return samples

    def _drawing(self, epoch: int, start: int) -> contextlib.AbstractContextManager[None]:
        return random_state.of_samples(self.how.seed, position=epoch * EPOCH + start, first=0)

    def _nothing_left(self) -> RecipeError:
        if self.is_short:
            return RecipeError(
                f"the stream has fewer samples than one global batch of {self.how.global_batch}",
                fix="use a smaller global_batch, or leave drop_last and equal_shares out",
            )
        if consumed := self.position % EPOCH:
            return RecipeError(
                f"the stream has no samples after the {consumed} that this epoch already consumed",
                fix="use the same data, or start a new run without the checkpoint",
            )
        return RecipeError("the stream is empty", fix="check where its samples come from")


def _pose_as_only_worker(worker: Any) -> None:
    """Keep the stream from dividing itself among workers, as many do: each worker must read all of it."""
    torch_worker._worker_info = torch_worker.WorkerInfo(
        id=0, num_workers=1, seed=worker.seed - worker.id, dataset=worker.dataset
    )


def is_stream(dataset: Any) -> bool:
    """True if it can be iterated but not indexed."""
    if isinstance(dataset, IterableDataset):
        return True
    return hasattr(dataset, "__iter__") and not hasattr(dataset, "__getitem__")
