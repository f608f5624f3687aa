"""(seed, epoch, position) -> index of a sample. Pure, O(1) memory, the same on every rank and machine.

The permutation can be evaluated at any position. So the state of the data is one integer: there is no list to
build, keep or save, and a run of another world size continues at the same place. It is a Feistel network (a
bijection on 2^k numbers for any round function), applied again until the result is in [0, n).
"""

import numpy as np
from numpy.typing import NDArray

# Four rounds already pass this package's tests. The number must be even: the halves swap in each round and
# may differ in width.
_ROUNDS = 6
# With fewer bits, a handful of samples is not shuffled evenly.
_LEAST_BITS = 6
# Up to this many numbers, computing all of them once is faster: a quarter of the time for 1,437 samples.
_TABLED = 4096


def shuffled(positions: NDArray[np.int64], *, n: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """Sample indices at the given positions of one epoch.

    positions   (k,) each in [0, n)
    Returns (k,) int64. Over all positions of an epoch, every index of [0, n) appears exactly once.
    """
    bits = max(_LEAST_BITS, (n - 1).bit_length())
    low = bits // 2
    keys = np.random.SeedSequence([seed, epoch]).generate_state(_ROUNDS, np.uint32)

    def walk(x: NDArray[np.int64]) -> NDArray[np.int64]:
        left, right = (x >> low).astype(np.uint32), (x & _mask(low)).astype(np.uint32)
        for number, key in enumerate(keys):
            width = low if number % 2 else bits - low  # of `left`, which becomes `right` in this round
            left, right = right, left ^ (_mix(right + key) & _mask(width))
        return (left.astype(np.int64) << low) | right

    # If there are few numbers, compute all walks at once: a loop over ever shorter arrays would take longer.
    table = walk(np.arange(2**bits)) if 2**bits <= _TABLED else None
    x = positions.astype(np.int64)
    outside = np.ones(x.shape, dtype=bool)
    while outside.any():
        x[outside] = walk(x[outside]) if table is None else table[x[outside]]
        outside = x >= n
    return x


def _mask(bits: int) -> np.uint32:
    return np.uint32(2**bits - 1)


def _mix(x: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Spread every input bit over the output (the finalizer of MurmurHash3; arrays wrap modulo 2^32)."""
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    x = (x ^ (x >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return x ^ (x >> np.uint32(16))


def rank_slice(count: int, *, rank: int, size: int) -> slice:
    """This rank's part of `count` items: contiguous; parts of different ranks differ by at most one item."""
    return slice(rank * count // size, (rank + 1) * count // size)
