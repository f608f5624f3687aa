"""A stream: samples that can only be read one after the other, again from the start in each epoch.

Every rank reads all of it and keeps its share: each sample is used exactly once an epoch at any number of
ranks, which may change, and all see the end at the same batch. This holds as far as the stream brings the
same samples in the same order on every rank and whenever an epoch is read again. What is costly (decoding)
belongs into `collate`, which only sees the rank's own samples.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from torch.utils.data import IterableDataset, get_worker_info
from torch.utils.data._utils import worker as torch_worker

from dtj import random_state
from dtj.data.cut import Cut, Part, Share
from dtj.data.load import Collate, Loader, as_batch
from dtj.errors import RecipeError

# A position is epoch x this + samples of the epoch that are consumed: one integer, whatever the length.
_EPOCH = 1 << 40


class _Loaded(NamedTuple):
    """This rank's part of a global batch: collated micro-batches."""

    share: Share
    data: list[Any]


class Streamed:
    """Batches in the order of the stream; its `set_epoch(n)` and `skip(n)` are used where it has them.

    steps_per_epoch  as the stream's length says, None where it has none; what comes is what counts
    """

    def __init__(
        self,
        dataset: Any,
        *,
        global_batch: int,
        cut: Cut,
        seed: int,
        once: bool,
        loader: Loader,
    ) -> None:
        if hasattr(dataset, "__next__"):
            raise RecipeError(
                f"the data set is a {type(dataset).__name__}, which can be read only once",
                fix="give an object whose __iter__ begins anew, e.g. a torch.utils.data.IterableDataset",
            )
        length = _length_if_known(dataset)
        self.steps_per_epoch = None if length is None else -(-length // global_batch)
        self._read = partial(
            _Reading,
            stream=dataset,
            global_batch=global_batch,
            cut=cut,
            seed=seed,
            once=once,
            collate=loader.collate,
        )
        self._dataset = dataset
        self._loader = loader
        self._items: Iterator[_Loaded] | None = None
        self._present: _Loaded | None = None

    def epoch(self, position: int) -> int:
        """Epoch of the sample at a position, from 0."""
        return position // _EPOCH

    def at(self, position: int) -> Share:
        """The batch that begins there; asking twice gives the same one. Waits until it is read.

        RecipeError where there is none.
        """
        if self._present is None or self._present.share.position != position:
            self._present = next(self._items, None) if self._items is not None else None
        if self._present is None or self._present.share.position != position:
            self._items = self._loader.ahead(self._read(position=position), of=self._dataset)
            self._present = next(self._items)
        return self._present.share

    def load(self, share: Share, part: Part) -> Any:
        """One of the micro-batches of the batch that `at` gave last, in the memory of the host."""
        assert self._present is not None and self._present.share.position == share.position  # noqa: PT018
        return self._present.data[part.number]

    def after(self, share: Share) -> int:
        """The position behind a batch."""
        return (share.epoch + 1) * _EPOCH if share.ends_epoch else share.position + share.samples

    def close(self) -> None:
        """Let the workers go."""
        self._items = None

    def state(self, position: int) -> dict[str, int]:
        """A position, for people to read too."""
        epoch, consumed = divmod(position, _EPOCH)
        return {"epoch": epoch, "consumed": consumed}

    def position(self, state: dict[str, int]) -> int:
        """Raise RecipeError where the checkpoint is of a data set with an index."""
        if set(state) != {"epoch", "consumed"}:
            raise RecipeError(
                "the checkpoint counts in a data set with an index, now it is a stream",
                fix="use the same data, or start a new run without the checkpoint",
            )
        return state["epoch"] * _EPOCH + state["consumed"]


@dataclass(kw_only=True, eq=False)
class _Reading(IterableDataset[_Loaded | RecipeError]):
    """Reads the stream from a position on; of N workers, each reads all and collates every Nth batch.

    Where nothing is left to read there, it yields what is wrong.
    """

    stream: Any
    position: int
    global_batch: int
    cut: Cut
    seed: int
    once: bool
    collate: Collate

    def __iter__(self) -> Iterator[_Loaded | RecipeError]:
        worker = get_worker_info()
        mine, workers = (worker.id, worker.num_workers) if worker else (0, 1)
        if worker:
            _pass_for_the_only(worker)
        is_empty = True
        for number, (share, samples) in enumerate(self._batches()):
            is_empty = False
            if number % workers == mine:
                yield self._collated(share, samples)
        if is_empty:
            yield self._nothing_left()

    def _collated(self, share: Share, samples: list[Any]) -> _Loaded:
        start = share.position % _EPOCH
        first = int(share.parts[0].indices[0])
        with random_state.of_samples(self.seed, position=share.position, first=first):
            data = [
                as_batch(self.collate([samples[i - start] for i in part.indices.tolist()]))
                for part in share.parts
            ]
        return _Loaded(share, data)

    def _batches(self) -> Iterator[tuple[Share, list[Any]]]:
        """Batch after batch, epoch after epoch; ends at an epoch of which nothing is left."""
        epoch, start = divmod(self.position, _EPOCH)
        while batch := list(islice(samples := self._epoch(epoch, skip=start), self.global_batch)):
            while batch:
                following = list(islice(samples, self.global_batch))
                mine = self.cut.mine(len(batch)) or range(1)  # the stand-in of a rank without a sample
                indices = start + np.arange(mine.start, mine.stop)
                parts = self.cut.split(indices, samples=len(batch))
                yield Share(epoch * _EPOCH + start, len(batch), epoch, not following, parts), batch
                start += len(batch)
                batch = following
            if self.once:
                return
            epoch, start = epoch + 1, 0

    def _epoch(self, epoch: int, *, skip: int) -> Iterator[Any]:
        if hasattr(self.stream, "set_epoch"):
            self.stream.set_epoch(epoch)
        if skip and hasattr(self.stream, "skip"):
            return iter(self.stream.skip(skip))
        return islice(iter(self.stream), skip, None)

    def _nothing_left(self) -> RecipeError:
        if consumed := self.position % _EPOCH:
            return RecipeError(
                f"the stream has fewer samples than the {consumed} of this epoch that are consumed",
                fix="use the same data, or start a new run without the checkpoint",
            )
        return RecipeError("the stream is empty", fix="check where its samples come from")


def _pass_for_the_only(worker: Any) -> None:
    """Many a stream divides itself among workers; here each of them reads all, so the rest would be lost."""
    torch_worker._worker_info = torch_worker.WorkerInfo(
        id=0, num_workers=1, seed=worker.seed - worker.id, dataset=worker.dataset
    )


def is_stream(dataset: Any) -> bool:
    """It can be read, but not be asked for the sample of a number."""
    if isinstance(dataset, IterableDataset):
        return True
    return hasattr(dataset, "__iter__") and not hasattr(dataset, "__getitem__")


def _length_if_known(dataset: Any) -> int | None:
    try:
        return len(dataset)
    except (TypeError, NotImplementedError):
        return None
