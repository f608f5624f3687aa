"""How many replicas does the next generation of an elastic job have? Pure.

Replicas 0 to n-1 train, so that ranks keep their numbers. Replicas after a gap wait until the gap is closed.

    the next replica joins                      -> larger
    the last replicas are asked to terminate    -> smaller, at once
    a replica is lost and does not come back    -> smaller after SHRINK_DELAY_S; replicas after it wait too

A size that --mesh does not fit is skipped: the replicas above the next smaller one wait.
"""

from collections.abc import Set

from dtj.agent.wire.protocol import Limits

# Delay after a change, so that pods that are created or deleted together count as one change.
RESIZE_DELAY_S = 1.5
# How long the other replicas wait for a lost one before they continue without it.
SHRINK_DELAY_S = 60.0


def size(current: int, *, here: Set[int], left: Set[int], limits: Limits, waits_for_lost: bool) -> int:
    """The next size after `current`; `current` if the job keeps its size or waits.

    here            replicas that are connected and were not asked to terminate
    left            replicas that were asked to terminate, gone or not
    waits_for_lost  lost replicas may still come back
    """
    prefix = next(
        replica for replica in range(limits.most + 1) if replica not in here or replica == limits.most
    )
    found = limits.largest(prefix)
    is_farewell = left >= set(range(prefix, current))
    may_change = prefix >= current or is_farewell or not waits_for_lost
    return found if found is not None and may_change else current
