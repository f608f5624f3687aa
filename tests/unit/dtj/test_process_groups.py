"""Leaving the process groups of a generation."""

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import torch
import torch.distributed as dist

from dtj.process_groups import RetiredGroups

TIMEOUT = timedelta(seconds=100)


def test_retired_group_with_a_pending_collective_does_not_block():
    """The peer does not join the collective: without a thread, the second `add` would block for long."""
    store = dist.HashStore()  # type: ignore[attr-defined]
    with ThreadPoolExecutor(2) as pool:
        group, peer = pool.map(lambda rank: dist.ProcessGroupGloo(store, rank, 2, TIMEOUT), range(2))
    work = group.allreduce([torch.ones(1)])  # type: ignore[attr-defined]
    retired = RetiredGroups()
    retired.add([group])
    del group

    retired.add([])

    (cleanup,) = (each for each in threading.enumerate() if each.name == "dtj-retired-groups")
    assert not work.is_completed()
    peer.allreduce([torch.ones(1)]).wait()  # type: ignore[attr-defined]  # so that the test leaves nothing behind
    cleanup.join(60)
    assert not cleanup.is_alive()
