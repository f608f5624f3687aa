"""Dataset -> global batches -> this rank's micro-batches, on the device.

Comes after `indexed.py` and `stream.py`, which load samples, and before `step/backward.py`.
The state of a feed is one position, which stays valid when the world size changes.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dtj.data.device_copy import Copying, DeviceCopy
from dtj.data.source import Source
from dtj.data.splitter import MicroBatch, RankBatch
from dtj.errors import RecipeError

Over = Callable[["Batch"], Iterator[Any]]
# Of a state, what decides how many steps an epoch has: what to call it, and how to keep it.
_STEPS_BY = {
    "global_batch": ("a global_batch of {}", "use global_batch={}"),
    "steps_per_epoch": (
        "{} steps per epoch",
        "let the batches of all ranks together stay as large, e.g. batch_size=64 // run.size",
    ),
}


@dataclass(frozen=True, kw_only=True)
class Batch:
    """One global batch as seen from one rank. Iterating over it loads this rank's samples.

    samples        of the whole global batch, over all ranks (the last batch of an epoch may be smaller).
                   With a loader of the user's own each rank may have another estimate
    epoch          that these samples belong to, from 0
    ends_epoch     True for the last batch of an epoch
    micro_batches  of this rank
    fetch          micro-batch -> its collated samples, on this rank's device
    over           batch -> its micro-batches one after the other, each with a `run.backward`; None: only data
    divisor        of the counts of its losses until their sum is known; the same on every rank
    """

    samples: int
    epoch: int
    ends_epoch: bool
    micro_batches: Sequence[MicroBatch]
    fetch: Callable[[MicroBatch], Any]
    over: Over | None = None
    divisor: int = 1

    def __iter__(self) -> Iterator[Any]:
        """This rank's micro-batches, on its device."""
        if self.over is not None:
            return self.over(self)
        return (self.fetch(micro_batch) for micro_batch in self.micro_batches)


@dataclass
class _Ahead:
    """What was loaded ahead: the first micro-batch of the batch at a position, or why it could not be."""

    position: int
    copying: Copying | None = None
    error: Exception | None = None


class Feed:
    """All global batches of a dataset, epoch after epoch.

    position  of the next batch, in the units of the source
    consumed  samples, over all ranks, since this process started
    waited_s  seconds that this rank has waited for samples
    equal_shares  every rank has equally many samples in each step
    global_batch  samples of a step over all ranks; None: a run without data
    tokens    tokens per sample; None if samples are not text
    """

    def __init__(
        self,
        source: Source,
        *,
        device: torch.device,
        equal_shares: bool = True,
        global_batch: int | None = None,
        tokens: int | None = None,
    ) -> None:
        self.equal_shares, self.global_batch, self.tokens = equal_shares, global_batch, tokens
        self.position = 0
        self.consumed = 0
        self.waited_s = 0.0
        self._source = source
        self._copy = DeviceCopy(device)
        self._rank_batch: RankBatch | None = None
        self._ahead: _Ahead | None = None
        self._counts_epochs = False
        self._restored: dict[str, Any] = {}

    @property
    def steps_per_epoch(self) -> int:
        """Batches of one epoch, including a smaller last one; RecipeError if that is unknown."""
        steps = self._source.steps_per_epoch
        if steps is None:
            raise RecipeError(
                "the dataset is a stream without __len__, so the number of steps per epoch is unknown",
                fix="count in steps (run.steps(1000), Recipe(steps=1000)), or give the stream __len__",
            )
        self._counts_epochs = True
        return steps

    @property
    def epoch(self) -> int:
        """Epoch of the next batch, from 0."""
        return self._source.epoch(self.position)

    def batch(self, *, over: Over | None = None) -> Batch:
        """The batch at the current position; calling it again returns the same samples. over: see Batch."""
        copying = self._loaded_ahead()
        rank_batch = self._rank_batch = self._timed(self._source.at, self.position)

        def fetch(micro_batch: MicroBatch) -> Any:
            nonlocal copying
            if copying is not None and micro_batch.number == 0:
                begun, copying = copying, None  # once: a repeated pass gets a new copy
                return begun.result()
            return self._copy(self._timed(self._source.load, rank_batch, micro_batch))

        return Batch(
            samples=rank_batch.samples,
            epoch=rank_batch.epoch,
            ends_epoch=rank_batch.ends_epoch,
            micro_batches=rank_batch.micro_batches,
            fetch=fetch,
            over=over,
            divisor=self._source.divisor(rank_batch),
        )

    def advance(self) -> None:
        """Move on to the next batch: the step on the current one is done."""
        assert self._rank_batch is not None  # set by `batch`
        self.position = self._rank_batch.following
        self.consumed += self._rank_batch.samples

    def look_ahead(self) -> None:
        """Load the first micro-batch of the batch at the current position, and begin its copy to the device.

        To be called when the step before it is queued on the device, which then computes while this rank
        loads. The position stays the same: a batch that is never trained on does not count. Does nothing
        unless the device copies beside its kernels. An error is raised by `batch`, if that is called at all.
        """
        if not self._copy.overlaps:
            return
        ahead = self._ahead = _Ahead(self.position)
        try:
            rank_batch = self._timed(self._source.at, self.position)
            if rank_batch.micro_batches:
                first = self._timed(self._source.load, rank_batch, rank_batch.micro_batches[0])
                ahead.copying = self._copy.begin(first)
        except Exception as error:  # noqa: BLE001 - of the user's data set
            ahead.error = error

    def epoch_once(self) -> Iterator[Batch]:
        """The batches of the current epoch, from the current position on."""
        while True:
            batch = self.batch()
            yield batch
            self.advance()
            if batch.ends_epoch:
                return

    def same_on_all_ranks(self, verb: str) -> dict[str, int]:
        """By what it is: sizes that may not differ among the ranks; 0 for one that the data does not have."""
        state = self._source.state(0)
        names = {"global_batch": "global batch", "length": "number of samples"}
        return {f"the {name} of {verb}": state.get(field, 0) for field, name in names.items()}

    def check_alike(self, gather: Callable[[int], list[int]]) -> str:
        """RecipeError on all ranks if the data is a stream that has other samples on another rank.

        Returns a warning if it is a loader that has the same batches on all ranks, or a map-style dataset
        that has other samples on another rank; else "".
        """
        return self._source.check_alike(self.position, gather)

    def share(self, gather: Callable[[Sequence[int]], list[list[int]]]) -> None:
        """See Source.share."""
        self._source.share(self.position, gather)

    def close(self) -> None:
        """Stop the worker processes, if there are any."""
        self._ahead = None
        self._source.close()

    def state_dict(self) -> dict[str, Any]:
        """The position, and what must be the same for it to be valid."""
        return self._source.state(self.position)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Raise RecipeError if the state was saved with another dataset or seed.

        See also `checked_total`.
        """
        self.position, self._restored = self._source.position(state), state

    def checked_total(self, total: int, step: int) -> int:
        """`total`. RecipeError if it counts epochs, and an epoch had other steps in the restored state.

        It counts them if it is a multiple of `steps_per_epoch`, which the program has asked for. If those
        epochs are done, nothing is left: `step`, the present one.
        """
        steps = self._source.steps_per_epoch  # 0 of a stream without a whole batch
        if not self._counts_epochs or not steps or total % steps:
            return total
        state = self._source.state(self.position)
        for field, (what, keep) in _STEPS_BY.items():
            was, now = self._restored.get(field), state.get(field)
            if None not in {was, now} and was != now:
                if self.epoch * steps >= total:
                    return step
                raise RecipeError(
                    f"the checkpoint was made with {what.format(was)}, this run has {now}, so the number of "
                    "epochs would change",
                    fix=f"{keep.format(was)}, or count in steps: run.steps(1000), Recipe(steps=1000)",
                )
        return total

    def _loaded_ahead(self) -> Copying | None:
        ahead, self._ahead = self._ahead, None
        if ahead is None or ahead.position != self.position:
            return None
        if ahead.error is not None:
            raise ahead.error
        return ahead.copying

    def _timed(self, load: Callable[..., Any], *args: Any) -> Any:
        started = time.perf_counter()
        try:
            return load(*args)
        finally:
            self.waited_s += time.perf_counter() - started
