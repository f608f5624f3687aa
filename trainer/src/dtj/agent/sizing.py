"""How many replicas does the next generation of an elastic job have? Pure.

Replicas 0 to n-1 train, so that ranks keep their numbers; a replica behind a gap waits until it is closed.

    the next replica joins                  -> larger
    the last ones leave because asked to    -> smaller, at once
    one is lost and does not come back      -> smaller after SHRINK_DELAY_S; in a gap those behind it wait too
"""

from collections.abc import Set
from dataclasses import dataclass

# So long after a change the size is judged: pods that are made or deleted together count together.
RESIZE_DELAY_S = 1.5
# So long a lost replica is waited for by those that could go on without it.
SHRINK_DELAY_S = 60.0


@dataclass(frozen=True)
class Limits:
    """Replicas that the job may have."""

    least: int
    most: int


def size(current: int, *, here: Set[int], left: Set[int], limits: Limits, waits_for_lost: bool) -> int:
    """The size after `current`, or `current` where the job is to stay or to wait.

    here        replicas that take part and were not asked to end
    left        replicas that were asked to end, whether they are gone or not
    waits_for_lost  somebody lost may still come back
    """
    prefix = next(
        replica for replica in range(limits.most + 1) if replica not in here or replica == limits.most
    )
    if prefix >= current:
        return prefix
    is_farewell = left >= set(range(prefix, current))
    if prefix >= limits.least and (is_farewell or not waits_for_lost):
        return prefix
    return current
