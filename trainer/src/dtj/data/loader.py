"""Load samples and collate them, in this process or in worker processes that load ahead."""

import os
import pickle
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch.utils.data import DataLoader, TensorDataset, default_collate

from dtj.data import worker
from dtj.data.splitter import Indices
from dtj.errors import RecipeError
from dtj.ranks import random_state

Collate = Callable[[list[Any]], Any]
# Workers of fork and spawn are direct children of this process, so that they can end with it; Python 3.14
# no longer forks by default.
_START = "fork" if sys.platform == "linux" else None


class Pair(NamedTuple):
    """A micro-batch of a dataset of (input, target) pairs: `mb.x, mb.y`, or unpacked."""

    x: Any
    y: Any


def look_up(dataset: Any, indices: Indices, collate: Collate, *, seed: int, position: int) -> Any:
    """The collated samples at `indices` of a map-style dataset, on the device where the dataset has them.

    seed, position  of the run and of the batch; with the samples they determine the random numbers drawn here
    """
    # Index each tensor once, not once per sample. Not for subclasses, which may override __getitem__.
    if type(dataset) is TensorDataset and collate is default_collate:
        rows = torch.from_numpy(indices)
        # index_select takes a third of the time. Its result is contiguous, and it needs rows on that device.
        return as_batch(
            [c.index_select(0, rows) if c.is_cpu and c.is_contiguous() else c[rows] for c in dataset.tensors]
        )
    wanted: list[int] = indices.tolist()
    with random_state.of_samples(seed, position=position, first=wanted[0]):
        if hasattr(dataset, "__getitems__"):
            return as_batch(collate(dataset.__getitems__(wanted)))
        return as_batch(collate([dataset[i] for i in wanted]))


def as_batch(found: Any) -> Any:
    """What the loss function receives: two items as a `Pair`, other plain sequences as tuples."""
    if type(found) in {list, tuple}:
        return Pair(*found) if len(found) == 2 else tuple(found)
    return found


@dataclass(frozen=True, kw_only=True)
class Loader:
    """How samples are loaded.

    collate  list of samples -> one structure of tensors
    device   that the samples are moved to
    workers  processes that load ahead; 0: this process loads each micro-batch when it is needed
    start    how they are started, "fork" or "spawn"; None: fork on Linux, else Python's default
    """

    collate: Collate = default_collate
    device: torch.device
    workers: int = 0
    start: str | None = None

    def ahead(self, dataset: Any, *, of: Any, sampler: Any = None) -> Iterator[Any]:
        """Iterate over a dataset whose items are whole batches; an item that is a RecipeError is raised.

        of       the user's dataset, named in errors
        sampler  as for torch's DataLoader
        The workers end when the iterator is garbage-collected or when this process dies, however it dies.
        """
        start = self.start or _START
        loading = DataLoader(
            dataset,
            sampler=sampler,
            batch_size=None,
            collate_fn=_as_it_is,
            num_workers=self.workers,
            pin_memory=self.workers > 0 and self.device.type == "cuda",
            multiprocessing_context=start if self.workers else None,
            worker_init_fn=worker.Start(
                os.getpid(), partial(worker.send_errors_of_sending, type(of).__name__)
            ),
            generator=torch.Generator(),  # its own: the default one is for dropout and augmentation
        )
        try:
            with torch.device("cpu"):  # torch draws a seed from the generator, which is there
                return map(_raised, worker.Items(iter(loading)))
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            if start == "fork":  # nothing was pickled, so it is an error of the dataset
                raise
            raise worker.cannot_be_sent(f"the dataset {type(of).__name__}", error) from error


def _as_it_is(item: Any) -> Any:
    return item


def _raised(item: Any) -> Any:
    if isinstance(item, RecipeError):
        raise item
    return item
