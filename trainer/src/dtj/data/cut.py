"""A global batch -> which of its samples are this rank's, in micro-batches. Pure.

Before it stands `order.py` (which sample comes when), after it `indexed.py` and `stream.py`, which load them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from dtj.data import order

Indices = np.ndarray[Any, np.dtype[np.int64]]


class Part(NamedTuple):
    """One micro-batch of this rank.

    number   its place among the micro-batches of the step, from 0
    indices  (k,) int64, samples of the data set; of a stream their places in it
    weight   k / samples of the whole global batch; 0 where this rank has no sample left in a ragged batch and
             computes a stand-in, so that the collectives of the step stay whole
    """

    number: int
    indices: Indices
    weight: float


class Share(NamedTuple):
    """What one rank does of a global batch.

    position    of the batch, as the feed counts
    samples     in the whole global batch, over all ranks (the last one of an epoch may be smaller)
    epoch       that these samples belong to, from 0
    ends_epoch  True for the last batch of an epoch
    parts       this rank's micro-batches
    """

    position: int
    samples: int
    epoch: int
    ends_epoch: bool
    parts: Sequence[Part]


@dataclass(frozen=True, kw_only=True)
class Cut:
    """Who takes which samples of a global batch, and how many of them at once.

    rank, size   among those with samples of their own; ranks that split one model between them count as one
    micro_batch  samples of each micro-batch but the last; None takes the whole share at once
    in_lockstep  every rank has equally many, if need be with stand-ins that weigh nothing
    pipelined    all of one size, at most micro_batch; where that is None, so many of them
    """

    rank: int = 0
    size: int = 1
    micro_batch: int | None = None
    in_lockstep: bool = False
    pipelined: int | None = None

    def mine(self, samples: int) -> range:
        """This rank's places in a batch of so many samples; none where there are fewer samples than ranks."""
        return range(samples)[order.share(samples, rank=self.rank, size=self.size)]

    def micro(self, share: int) -> int:
        """Samples of a micro-batch out of `share`, at least 1."""
        if self.pipelined is None:
            return self.micro_batch or share
        at_most = self.micro_batch or max(1, share // self.pipelined)
        return next(size for size in range(min(at_most, share), 0, -1) if share % size == 0)

    def split(self, indices: Indices, *, samples: int) -> list[Part]:
        """The micro-batches out of this rank's indices, or out of one index that stands in for none."""
        is_real = bool(self.mine(samples))
        micro = self.micro(len(indices))
        chunks = [indices[first : first + micro] for first in range(0, len(indices), micro)]
        parts = [Part(n, chunk, len(chunk) / samples * is_real) for n, chunk in enumerate(chunks)]
        if self.in_lockstep:
            largest = -(-samples // self.size)
            for number in range(len(parts), -(-largest // self.micro(largest))):
                parts.append(Part(number, indices[:1], 0.0))
        return parts
