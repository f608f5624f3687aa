"""Feeds as one of several ranks sees them, without starting ranks (only workers); for the tests of data/."""

from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import default_collate

from dtj.data.feed import Feed
from dtj.data.feed_maker import feed as make_feed
from dtj.data.loader import Loader
from dtj.data.splitter import Splitter

CPU = torch.device("cpu")


def feed(
    n: int = 10,
    *,
    rank: int = 0,
    size: int = 1,
    batch: int = 4,
    micro: int | None = None,
    data: Any = None,
    in_lockstep: bool = False,
    shuffle: bool = True,
    once: bool = False,
    workers: int = 0,
    start: str | None = None,
    collate: Any = default_collate,
    drop_last: bool = False,
    equal_shares: bool = False,
    device: torch.device = CPU,
) -> Feed:
    return make_feed(
        range(n) if data is None else data,
        global_batch=batch,
        splitter=Splitter(
            rank=rank, size=size, micro_batch=micro, in_lockstep=in_lockstep, equal_shares=equal_shares
        ),
        shuffle=shuffle,
        once=once,
        drop_last=drop_last,
        loader=Loader(collate=collate, device=device, workers=workers, start=start),
    )


def real(f: Feed) -> list[int]:
    """Samples of the next batch that count for this rank."""
    return [i for mb in f.batch().micro_batches if mb.weight for i in mb.indices.tolist()]


def in_changing_worlds(test: Any) -> Any:
    """Run a test with random lengths, batches and micro-batches, and a random world size for each step."""
    examples = given(
        n=st.integers(1, 100),
        batch=st.integers(1, 50),
        sizes=st.lists(st.integers(1, 5), min_size=1, max_size=6),
        micro=st.none() | st.integers(1, 9),
    )
    return settings(max_examples=40)(examples(test))  # each example builds a feed for every step and rank
