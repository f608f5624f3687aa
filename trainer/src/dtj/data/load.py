"""Samples -> one structure of tensors, in this process or in workers that run ahead of it."""

import ctypes
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch.utils.data import DataLoader, TensorDataset, default_collate

from dtj.data.cut import Indices

Collate = Callable[[list[Any]], Any]
_PR_SET_PDEATHSIG = 1


class Pair(NamedTuple):
    """What a data set of (input, target) pairs arrives as: `mb.x, mb.y`, or unpacked."""

    x: Any
    y: Any


def look_up(dataset: Any, indices: Indices, collate: Collate) -> Any:
    """The samples at `indices` of a map-style data set, in the memory of the host."""
    if type(dataset) is TensorDataset:  # one indexing, not one per sample; a subclass may index otherwise
        rows = torch.from_numpy(indices)
        return dressed([column[rows] for column in dataset.tensors])
    if hasattr(dataset, "__getitems__"):
        return dressed(collate(dataset.__getitems__(indices.tolist())))
    return dressed(collate([dataset[i] for i in indices.tolist()]))


def dressed(found: Any) -> Any:
    """Pairs as `Pair`, other plain sequences as tuples."""
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

    def ahead(self, dataset: Any, *, sampler: Any = None) -> Iterator[Any]:
        """What torch's DataLoader yields for items that are batches already.

        Its workers end when the iterator is forgotten, and when this process dies in whatever way.
        """
        return iter(
            DataLoader(
                dataset,
                sampler=sampler,
                batch_size=None,
                collate_fn=_as_it_is,
                num_workers=self.workers,
                pin_memory=self.workers > 0 and self.device.type == "cuda",
                # Children of this process, whatever Python's default is: they are to end with it.
                multiprocessing_context="fork" if self.workers and sys.platform == "linux" else None,
                worker_init_fn=partial(_die_with, os.getpid()),
                generator=torch.Generator(),  # its own: the default one belongs to dropout and augmentation
            )
        )


def _as_it_is(item: Any) -> Any:
    return item


def _die_with(parent: int, _worker: int) -> None:
    """A worker that outlives its rank holds the rank's sockets open, and peers would wait for ever."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before this was asked for
            os._exit(1)
