"""(seed, epoch, position) -> index of a sample. Pure, O(1) memory, the same on every rank and machine.

A permutation that can be asked for any position makes the state of the data one integer: no shuffled list to
build, keep or save, and a world of another size continues at the same place. It is a Feistel network (a
bijection on 2^k numbers whatever its round function) that walks again while it lands outside [0, n).
"""

import numpy as np
from numpy.typing import NDArray

# Four rounds already pass the tests of this package; two more cost 30 % of some 0.2 ms a batch.
_ROUNDS = 6
# Rows and columns below which a table pays: for 1,437 samples a quarter of the time.
_TABLED = 64


def shuffled(positions: NDArray[np.int64], *, n: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """Sample indices at the given positions of one epoch.

    positions   (k,) each in [0, n)
    Returns (k,) int64: over all positions every index of [0, n) appears exactly once.
    """
    bits = max(2, (n - 1).bit_length())
    half = np.uint64((bits + 1) // 2)
    mask = np.uint64((1 << int(half)) - 1)
    keys = np.random.SeedSequence([seed, epoch]).generate_state(_ROUNDS, np.uint64)

    def walk(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
        left, right = x >> half, x & mask
        for key in keys:
            left, right = right, left ^ (_mix(right + key) & mask)
        return (left << half) | right

    # Of few cells all walks are worked out at once: the loop over ever shorter arrays would take longer.
    table = walk(np.arange((int(mask) + 1) ** 2, dtype=np.uint64)) if mask < _TABLED else None
    x = positions.astype(np.uint64)
    outside = np.ones(x.shape, dtype=bool)
    while outside.any():
        x[outside] = walk(x[outside]) if table is None else table[x[outside]]
        outside = x >= np.uint64(n)
    return x.astype(np.int64)


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Spread every input bit over the output (the finaliser of SplitMix64; arrays wrap modulo 2^64)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def share(count: int, *, rank: int, size: int) -> slice:
    """This rank's part of `count` things: contiguous, sizes differing by one at most."""
    return slice(rank * count // size, (rank + 1) * count // size)
