"""Samples -> one structure of tensors, in this process or in workers that run ahead of it."""

import os
import pickle
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch.utils.data import DataLoader, TensorDataset, default_collate

from dtj import random_state
from dtj.data import worker
from dtj.data.cut import Indices
from dtj.errors import RecipeError

Collate = Callable[[list[Any]], Any]
# Workers are children of this process, whatever Python's default is: they are to end with it.
_START = "fork" if sys.platform == "linux" else None


class Pair(NamedTuple):
    """What a data set of (input, target) pairs arrives as: `mb.x, mb.y`, or unpacked."""

    x: Any
    y: Any


def look_up(dataset: Any, indices: Indices, collate: Collate, *, seed: int, position: int) -> Any:
    """The samples at `indices` of a map-style data set, in the memory of the host.

    seed, position  of the run and of the batch: what is drawn here depends on them and on the samples
    """
    # One indexing, not one per sample; a subclass may index otherwise.
    if type(dataset) is TensorDataset and collate is default_collate:
        rows = torch.from_numpy(indices)
        return as_batch([column[rows] for column in dataset.tensors])
    wanted: list[int] = indices.tolist()
    with random_state.of_samples(seed, position=position, first=wanted[0]):
        if hasattr(dataset, "__getitems__"):
            return as_batch(collate(dataset.__getitems__(wanted)))
        return as_batch(collate([dataset[i] for i in wanted]))


def as_batch(found: Any) -> Any:
    """What a loss gets: pairs as `Pair`, other plain sequences as tuples."""
    if type(found) in {list, tuple}:
        return Pair(*found) if len(found) == 2 else tuple(found)
    return found


def to_device(value: Any, device: torch.device) -> Any:
    """The same structure on the device; from pinned memory without waiting for the copy."""
    if isinstance(value, torch.Tensor):
        return value.to(device, non_blocking=True)
    if isinstance(value, Mapping):
        return {key: to_device(item, device) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(to_device(item, device) for item in value))
    if isinstance(value, list | tuple):
        return type(value)(to_device(item, device) for item in value)
    return value


@dataclass(frozen=True, kw_only=True)
class Loader:
    """How samples are loaded.

    collate  list of samples -> one structure
    device   where they go
    workers  processes that load ahead; 0 loads when it is asked for
    """

    collate: Collate = default_collate
    device: torch.device
    workers: int = 0

    def ahead(self, dataset: Any, *, of: Any, sampler: Any = None) -> Iterator[Any]:
        """What torch's DataLoader yields for items that are batches already; raises a RecipeError among them.

        of  the user's data set, which errors name
        Its workers end when the iterator is forgotten, and when this process dies in whatever way.
        """
        loading = DataLoader(
            dataset,
            sampler=sampler,
            batch_size=None,
            collate_fn=_as_it_is,
            num_workers=self.workers,
            pin_memory=self.workers > 0 and self.device.type == "cuda",
            multiprocessing_context=_START if self.workers else None,
            worker_init_fn=partial(worker.begin, parent=os.getpid(), kind=type(of).__name__),
            generator=torch.Generator(),  # its own: the default one belongs to dropout and augmentation
        )
        try:
            return map(_raised, iter(loading))
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            if _START == "fork":  # nothing was pickled
                raise
            raise worker.cannot_be_sent(f"the data set {type(of).__name__}", error) from error


def _as_it_is(item: Any) -> Any:
    return item


def _raised(item: Any) -> Any:
    if isinstance(item, RecipeError):
        raise item
    return item
