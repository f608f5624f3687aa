"""The user's own loader of batches: a DataLoader, a StatefulDataLoader, or any iterable of batches.

Each rank reads its own batches, of the size that the loader gives them: a step takes `accumulate` of them.

divided    a torch DataLoader over a map-style dataset, in order or shuffled by torch's own sampler: dtj
           divides the samples among the ranks, and continues an epoch exactly at any number of ranks
as it is   any other loader: the user divides it. An epoch continues by reading up to that batch; with
           another number of ranks it starts again. Without a length, see own_epochs.py
"""

import contextlib
import copy
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_map_only
from torch.utils.data import (
    DataLoader,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    default_collate,
)

from dtj.data import order, worker
from dtj.data.digest import digest
from dtj.data.indexed import length_if_known, length_of
from dtj.data.loader import as_batch
from dtj.data.own_epochs import OwnEpochs
from dtj.data.source import EPOCH, Source
from dtj.data.splitter import MicroBatch, RankBatch
from dtj.errors import RecipeError, whole
from dtj.ranks import random_state

_END = object()
_KEPT = (
    *("num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn", "multiprocessing_context"),
    *("prefetch_factor", "persistent_workers", "in_order", "drop_last"),
)


class UserLoader(Source):
    """A step is `accumulate` batches of this rank, each of them a micro-batch."""

    def __init__(self, loader: Any, *, rank: int, size: int, seed: int, accumulate: int) -> None:
        self._kind = type(loader).__name__
        _check(loader, self._kind, accumulate)
        self._batches = (
            Divided(loader, rank=rank, size=size, seed=seed) if _can_divide(loader) else AsItIs(loader)
        )
        batches = self._batches.left(0)
        if batches == 0:
            raise _empty(self._kind)
        self._steps = None if batches is None else -(-batches // accumulate)
        self._own = OwnEpochs(rank=rank, size=size) if batches is None else None
        self._rank, self._size, self._seed, self._accumulate = rank, size, seed, accumulate
        # Each batch of a step is kept until it is used, and the loader may reuse its memory.
        self._is_new = accumulate == 1 or _makes_new(loader)
        self._items: Iterator[Any] | None = None
        self._next = -1  # position of the next item of `_items`
        self._present: RankBatch | None = None
        self._data: list[Any] = []

    @property
    def steps_per_epoch(self) -> int | None:
        """Including a last step with fewer batches; None if the loader has no length.

        Of the first epoch, if the others have another length: a resume must count as the run before it.
        """
        return self._steps

    @property
    def batch_size(self) -> int | None:
        """Samples of one batch of this rank; None: unknown."""
        return self._batches.batch_size

    def epoch(self, position: int) -> int:
        """Epoch at a position, from 0; without a length, that of this rank."""
        return self._own.before(position).epoch if self._own else position // EPOCH

    def at(self, position: int) -> RankBatch:
        if self._present is None or self._present.position != position:
            self._present = self._read(position)
        return self._present

    def load(self, rank_batch: RankBatch, micro_batch: MicroBatch) -> Any:
        assert rank_batch is self._present
        return self._data[micro_batch.number]

    def divisor(self, rank_batch: RankBatch) -> int:
        """See Batch. By batches, whose samples only their own rank knows."""
        return self._size * len(rank_batch.micro_batches)

    def share(self, position: int, gather: Callable[[Sequence[int]], list[list[int]]]) -> None:
        if self._own:
            self._own.share(position, gather)

    def check_alike(self, position: int, gather: Callable[[int], list[int]]) -> str:
        """A warning if all ranks read the same samples: then the loader is not divided; else "".

        RecipeError if it has another length on another rank: each epoch would end at another step there.
        """
        if self._size == 1 or isinstance(self._batches, Divided):
            return ""
        lengths = gather(self._batches.left(0) or 0)
        if len(set(lengths)) > 1:
            raise RecipeError(
                f"the loader {self._kind} has {min(lengths)} batches on one rank, {max(lengths)} on another",
                fix="divide the samples equally, as a DistributedSampler does, or leave its __len__ out",
            )
        found = set(gather(digest(self._compared(position))))
        if len(found) > 1 or found == {digest([])}:  # objects of other kinds count as nothing
            return ""
        return (
            f"every rank reads the same samples from the loader {self._kind}, so an epoch uses each of them "
            f"{self._size} times\n"
            "  fix: divide it, e.g. by a DistributedSampler, or pass a plain DataLoader, which dtj divides"
        )

    def close(self) -> None:
        self._items = None

    def state(self, position: int) -> dict[str, Any]:
        """A position in a readable form, and the ranks and steps that it was counted with."""
        if self._own:
            return {"batches": position, "ranks": self._size} | self._own.state(position)
        epoch, done = divmod(position, EPOCH)
        counted = {"ranks": self._size, "steps_per_epoch": self._steps}
        return {"epoch": epoch, self._batches.unit: done} | counted

    def position(self, state: dict[str, Any]) -> int:
        if not self.state(0).keys() - {"steps_per_epoch"} <= state.keys():
            raise RecipeError(
                "the checkpoint was made with other data: run.data, or another kind of loader",
                fix="use the same data, or start a new run without the checkpoint",
            )
        if self._own:
            self._items = None  # they may be of an epoch that the state does not know
            self._own.load(state, state["batches"])
            return int(state["batches"])
        epoch, done = int(state["epoch"]), int(state[self._batches.unit])
        if self._batches.unit == "batches" and state["ranks"] != self._size:
            done = 0  # which samples the other ranks have read is unknown: read the epoch again
        left = self._left(epoch, done)
        return (epoch + 1) * EPOCH if left is not None and left <= 0 else epoch * EPOCH + done

    def _compared(self, position: int) -> Any:
        """What the other ranks read as well if the loader is not divided."""
        if not isinstance(self._batches, AsItIs) or not self._batches.draws:
            self.at(position)
            return self._data
        # It may shuffle by the global generators, whose seeds differ among the ranks: read with equal ones.
        epoch = self.epoch(position)
        with random_state.of_samples(self._seed, position=epoch * EPOCH, first=0):
            items, _ = self._batches.begin(epoch, 0)
            return next(worker.Items(items), None)

    def _left(self, epoch: int, done: int) -> int | None:
        """Batches until this epoch ends; None: unknown."""
        self._batches.turn_to(epoch)
        return self._batches.left(done)

    def _read(self, position: int) -> RankBatch:
        epoch, done = divmod(position, EPOCH)
        left = None if self._own else self._left(epoch, done)
        wanted = self._accumulate if left is None else min(self._accumulate, left)
        sizes = self._batches.sizes(done, wanted)
        self._data = []
        if self._next != position or self._items is None:
            self._items = self._from(position, self._own) if self._own else self._batches_from(epoch, done)
        while len(self._data) < wanted:
            item = next(self._items, _END)
            if item is None:
                raise RecipeError(
                    f"the loader {self._kind} yielded None instead of a batch",
                    fix="collate_fn must return a batch: leave bad samples out of the dataset itself",
                )
            if item is _END:
                raise self._too_short(done, left)
            self._data.append(as_batch(item if self._is_new else _copied(item)))
            done = self._batches.after(done, 1)
        self._next = epoch * EPOCH + done
        weights = sizes or [1] * wanted  # not the length of their tensors, which need not be batch-first
        parts = enumerate(weights)
        micro = [MicroBatch(number, np.arange(k), k / sum(weights) / self._size) for number, k in parts]
        samples = self._size * sum(sizes or [_length_of(each) or 1 for each in self._data])
        ends_epoch = left == wanted
        following = (epoch + 1) * EPOCH if ends_epoch else self._next
        return RankBatch(position, following, samples, self.epoch(position), ends_epoch, micro)

    def _from(self, position: int, own: OwnEpochs) -> Iterator[Any]:
        """All batches of this rank from a position on, of a loader without a length: epoch after epoch."""
        epoch, at = own.before(position)
        while True:
            own.begin(epoch, at)
            began = at
            for item in self._batches_from(epoch, 0):
                if at >= position:
                    yield item
                at += 1
            if at == began:
                raise _empty(self._kind)
            epoch += 1

    def _batches_from(self, epoch: int, done: int) -> Iterator[Any]:
        """The loader's batches. What it draws while it reads one depends on that batch and the rank only."""
        with self._drawing(epoch * EPOCH):
            found, number = self._batches.begin(epoch, done)
        items = worker.Items(found)
        while True:
            with self._drawing(epoch * EPOCH + number):
                try:
                    item = next(items)
                except StopIteration:
                    return
            if number >= done:
                yield item
            number = self._batches.after(number, 1)

    def _drawing(self, position: int) -> contextlib.AbstractContextManager[None]:
        """Worker processes are seeded within the context in which an epoch begins, once an epoch."""
        return random_state.of_samples(self._seed, position=position, first=self._rank)

    def _too_short(self, done: int, left: int | None) -> RecipeError:
        if left is None or not done:
            return _empty(self._kind)
        return RecipeError(
            f"the loader {self._kind} ended {left - len(self._data)} batches before its length says",
            fix="correct its __len__, or remove it and count in steps: run.steps(1000)",
        )


class Divided:
    """A DataLoader over a map-style dataset, with a sampler that gives each rank its own samples.

    As torch's DistributedSampler it gives ranks equal numbers of samples: by repeating a few at the end of an
    epoch, with drop_last by leaving a few out.

    unit        of `done`, what an epoch has consumed: samples of all ranks
    batch_size  samples of a batch of this rank; None: unknown
    """

    unit = "samples"

    def __init__(self, loader: "DataLoader[Any]", *, rank: int, size: int, seed: int) -> None:
        shuffle = isinstance(loader.sampler, RandomSampler)
        self.batch_size: int | None = loader.batch_size
        self._size_of_batch = loader.batch_size or 1
        self._drop_last = loader.drop_last
        self._size = size
        self._length = length_of(loader.dataset)
        self._sampler = RankSampler(
            length=self._length, rank=rank, size=size, seed=seed, shuffle=shuffle, drop_last=loader.drop_last
        )
        kept = {name: getattr(loader, name) for name in _KEPT if hasattr(loader, name)}
        kept["worker_init_fn"] = worker.Start(os.getpid(), kept["worker_init_fn"])
        self._loader = DataLoader(
            loader.dataset,
            batch_size=loader.batch_size,
            sampler=self._sampler,
            **kept,  # without a generator: workers are seeded by the present one, see `_drawing`
        )

    def turn_to(self, epoch: int) -> None:
        """From now on `left` counts batches of this epoch."""

    def begin(self, epoch: int, done: int) -> tuple[Iterator[Any], int]:
        """The batches of an epoch from `done` on, or from its start; and what it has consumed there."""
        self._sampler.epoch, self._sampler.done = epoch, done
        return iter(self._loader), done

    def left(self, done: int) -> int:
        """Batches until the epoch ends; None: unknown."""
        samples = self._sampler.share(done)
        return samples // self._size_of_batch if self._drop_last else -(-samples // self._size_of_batch)

    def sizes(self, done: int, batches: int) -> list[int] | None:
        """Samples of each of this rank's next batches; None: unknown."""
        return _sizes(self._sampler.share(done), batches, each=self._size_of_batch)

    def after(self, done: int, batches: int) -> int:
        """What the epoch has consumed after some more batches of this rank."""
        return min(self._length, done + batches * self._size_of_batch * self._size)


@dataclass(kw_only=True, eq=False)
class RankSampler(Sampler[int]):
    """This rank's samples of an epoch, after the first `done` ones: every `size`-th, in the epoch's order."""

    length: int
    rank: int
    size: int
    seed: int
    shuffle: bool
    drop_last: bool
    epoch: int = 0
    done: int = 0

    def share(self, done: int) -> int:
        """Samples of each rank after the first `done` of all ranks; a few are repeated or left out."""
        left = self.length - done
        return left // self.size if self.drop_last else -(-left // self.size)

    def __iter__(self) -> Iterator[int]:
        places = self.done + self.rank + self.size * np.arange(self.share(self.done))
        places %= self.length
        if self.shuffle:
            places = order.shuffled(places, n=self.length, seed=self.seed, epoch=self.epoch)
        return iter(places.tolist())

    def __len__(self) -> int:
        return self.share(self.done)


class AsItIs:
    """A loader that the user has divided among the ranks; its `set_epoch(n)`, if any, is called.

    A generator of its own is seeded in each epoch: after a restart its samples have the same order.
    As Divided, but the unit is the batches of this rank.

    draws   it may take its samples by the global generators, so they differ among ranks that share nothing
    """

    unit = "batches"

    def __init__(self, loader: Any) -> None:
        self._loader = loader
        self.batch_size: int | None = getattr(loader, "batch_size", None)
        samplers = [getattr(loader, name, None) for name in ("sampler", "batch_sampler")]
        inner = getattr(samplers[1], "sampler", None)
        self._parts = [loader, *samplers, inner, getattr(loader, "dataset", None)]
        own = [getattr(part, "generator", None) for part in self._parts]
        self._seeds = {each: each.initial_seed() for each in own if isinstance(each, torch.Generator)}
        if isinstance(loader, DataLoader):
            loader.worker_init_fn = worker.Start(os.getpid(), loader.worker_init_fn)
        self._epoch = -1  # the loader's; before the first one, whatever it began with
        # A DistributedSampler gives each rank its share, and one with replacement needs none.
        sure = any(hasattr(part, "num_replicas") or getattr(part, "replacement", 0) for part in self._parts)
        is_map_style = isinstance(loader, DataLoader) and not isinstance(loader.dataset, IterableDataset)
        self.draws = is_map_style and not sure

    def begin(self, epoch: int, done: int) -> tuple[Iterator[Any], int]:
        del done  # a loader can only be read from its start
        for generator, seed in self._seeds.items():
            generator.manual_seed((seed + epoch) % 2**64)
        self._set_epoch(epoch)
        return iter(self._loader), 0

    def turn_to(self, epoch: int) -> None:
        if epoch != self._epoch:  # else it may be in the middle of this epoch
            self._set_epoch(epoch)

    def left(self, done: int) -> int | None:
        length = length_if_known(self._loader)
        return None if length is None else length - done

    def sizes(self, done: int, batches: int) -> list[int] | None:
        each = self.batch_size
        if each is None:
            return None
        length = length_if_known(getattr(self._loader, "sampler", None))
        return [each] * batches if length is None else _sizes(length - done * each, batches, each=each)

    def after(self, done: int, batches: int) -> int:
        return done + batches

    def _set_epoch(self, epoch: int) -> None:
        self._epoch = epoch
        for part in self._parts:
            if hasattr(part, "set_epoch"):
                part.set_epoch(epoch)


def _can_divide(loader: Any) -> bool:
    """A DataLoader whose order is only "in order" or "shuffled": a subclass or own sampler means more."""
    if type(loader) is not DataLoader or isinstance(loader.dataset, IterableDataset):
        return False
    sampler: Any = loader.sampler
    if loader.batch_size is None or type(loader.batch_sampler).__name__ != "BatchSampler":
        return False
    if length_if_known(sampler) != length_if_known(loader.dataset):
        return False
    is_shuffled = type(sampler) is RandomSampler and not sampler.replacement
    return is_shuffled or type(sampler) is SequentialSampler


def _makes_new(loader: Any) -> bool:
    """Whether torch allocates each batch: it collates the samples, or receives them from a worker."""
    return isinstance(loader, DataLoader) and (loader.num_workers > 0 or loader.collate_fn is default_collate)


def _copied(batch: Any) -> Any:
    try:
        return copy.deepcopy(batch)
    except Exception:  # noqa: BLE001 - of the user's types: e.g. it holds an open file, or a tensor of a graph
        return tree_map_only(torch.Tensor, torch.clone, batch)


def _check(loader: Any, kind: str, accumulate: int) -> None:
    whole(accumulate, "accumulate is", least=1, fix="set it to the batches that each rank takes in a step")
    if hasattr(loader, "__next__"):
        raise RecipeError(
            f"run.loader got a {kind}, which can be read only once",
            fix="pass the loader itself, not iter(loader)",
        )
    if hasattr(loader, "__getitem__") or not hasattr(loader, "__iter__"):
        raise RecipeError(
            f"run.loader got a {kind}, expected a loader, which yields batches",
            fix="pass a torch DataLoader, or pass a data set to run.data",
        )


def _empty(kind: str) -> RecipeError:
    return RecipeError(
        f"the loader {kind} yields no batch",
        fix="check where its samples come from; with drop_last each rank needs a whole batch of them",
    )


def _sizes(left: int, batches: int, *, each: int) -> list[int]:
    """Samples of each of some batches, if so many samples are left: only the last one may be smaller."""
    return [min(each, found) if (found := left - each * n) > 0 else each for n in range(batches)]


def _length_of(batch: Any) -> int | None:
    """Samples of a batch: the length of the first tensor in it; None if there is none."""
    if isinstance(batch, torch.Tensor):
        return len(batch) if batch.ndim else None
    if isinstance(batch, Mapping):
        batch = tuple(batch.values())
    values = batch if isinstance(batch, tuple | list) else ()
    return next((found for each in values if (found := _length_of(each)) is not None), None)
