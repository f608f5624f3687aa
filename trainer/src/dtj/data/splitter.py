"""Split a global batch: which samples this rank takes, and in which micro-batches. Pure.

Comes after `order.py` (the order of the samples) and before `indexed.py` and `stream.py` (which load them).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from dtj.data import order

Indices = np.ndarray[Any, np.dtype[np.int64]]


class MicroBatch(NamedTuple):
    """The samples of one forward and backward pass on this rank.

    number   index among the micro-batches of the step, from 0
    indices  (k,) int64, indices into the dataset; for a stream, the positions within the epoch
    weight   k / samples of the whole global batch; 0 for a dummy micro-batch, which a rank without a sample
             of its own computes so that it still takes part in the collectives of the step
    """

    number: int
    indices: Indices
    weight: float


class RankBatch(NamedTuple):
    """One rank's part of a global batch.

    position       of the batch, in the units of its source
    following      position of the next batch
    samples        of the whole global batch, over all ranks (the last batch of an epoch may be smaller)
    epoch          that these samples belong to, from 0
    ends_epoch     True for the last batch of an epoch
    micro_batches  of this rank
    """

    position: int
    following: int
    samples: int
    epoch: int
    ends_epoch: bool
    micro_batches: Sequence[MicroBatch]


@dataclass(frozen=True, kw_only=True)
class Splitter:
    """Splits a global batch among the ranks, and a rank's part into micro-batches.

    rank, size   of this rank among those with different samples; ranks that split one model count as one
    micro_batch  samples of each micro-batch but the last; None: one micro-batch with all samples of the rank
    in_lockstep  every rank gets the same number of micro-batches, filled up with dummies of weight 0
    pipeline_micro_batches  None: micro-batches may differ in size. A number: all have the same size, at most
                 micro_batch; if that is None, this is how many micro-batches to aim for
    equal_shares  a smaller last batch of an epoch is left out, and the ranks' parts of the others are equal
    """

    rank: int = 0
    size: int = 1
    micro_batch: int | None = None
    in_lockstep: bool = False
    pipeline_micro_batches: int | None = None
    equal_shares: bool = False

    def rank_range(self, samples: int) -> range:
        """This rank's places in a global batch of `samples`; empty if there are fewer samples than ranks."""
        return range(samples)[order.rank_slice(samples, rank=self.rank, size=self.size)]

    def micro_batch_size(self, samples: int) -> int:
        """Samples of one micro-batch if this rank has `samples` in all; at least 1."""
        if self.pipeline_micro_batches is None:
            return self.micro_batch or samples
        at_most = self.micro_batch or max(1, samples // self.pipeline_micro_batches)
        return next(size for size in range(min(at_most, samples), 0, -1) if samples % size == 0)

    def split(self, indices: Indices, *, samples: int) -> list[MicroBatch]:
        """The micro-batches of this rank.

        indices  (k,) of this rank's samples; a rank without any gives one index, for its dummy micro-batch
        samples  of the whole global batch
        """
        is_real = bool(self.rank_range(samples))
        size = self.micro_batch_size(len(indices))
        chunks = [indices[first : first + size] for first in range(0, len(indices), size)]
        found = [MicroBatch(n, chunk, len(chunk) / samples * is_real) for n, chunk in enumerate(chunks)]
        if self.in_lockstep:
            largest = -(-samples // self.size)
            for number in range(len(found), -(-largest // self.micro_batch_size(largest))):
                found.append(MicroBatch(number, indices[:1], 0.0))
        return found
