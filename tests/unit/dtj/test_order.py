"""The order of samples: each sample once, for datasets of any size, without a list."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dtj.data import order


def whole(n: int, *, seed: int = 0, epoch: int = 0) -> list[int]:
    found: list[int] = order.shuffled(np.arange(n), n=n, seed=seed, epoch=epoch).tolist()
    return found


@given(n=st.integers(1, 3000), seed=st.integers(0, 2**40), epoch=st.integers(0, 1000))
def test_every_sample_appears_exactly_once(n: int, seed: int, epoch: int) -> None:
    assert sorted(whole(n, seed=seed, epoch=epoch)) == list(range(n))


def test_order_never_changes_because_checkpoints_depend_on_it() -> None:
    assert whole(10, seed=1, epoch=2) == [7, 9, 2, 4, 0, 5, 3, 8, 6, 1]


def test_epochs_and_seeds_differ() -> None:
    orders = [whole(500, seed=s, epoch=e) for s in range(3) for e in range(3)]
    assert len({tuple(o) for o in orders}) == 9


def test_billion_samples_need_no_list() -> None:
    found = order.shuffled(np.arange(10**9 - 64, 10**9), n=10**9, seed=0, epoch=0)
    assert len(set(found.tolist())) == 64
    assert found.min() >= 0
    assert found.max() < 10**9


def test_shuffled_order_does_not_correlate_with_the_original() -> None:
    found = np.array(whole(60_000))
    neighbours = np.corrcoef(found[:-1], found[1:])[0, 1]
    assert abs(neighbours) < 0.02  # five standard deviations of a random order
    assert (found == np.arange(60_000)).sum() < 10
    first_places = [whole(1797, seed=s)[0] / 1797 for s in range(1000)]
    assert np.mean(first_places) == pytest.approx(0.5, abs=0.05)


def test_few_samples_are_shuffled_evenly() -> None:
    last = Counter(order.shuffled(np.array([3]), n=5, seed=seed, epoch=0).item() for seed in range(20_000))
    off = sum((last[sample] - 4000) ** 2 / 4000 for sample in range(5))
    assert off < 15.3  # chi-squared of four degrees of freedom, mean and four standard deviations


@given(count=st.integers(0, 1000), size=st.integers(1, 64))
def test_rank_slices_cover_everything_and_differ_by_at_most_one(count: int, size: int) -> None:
    slices = [range(count)[order.rank_slice(count, rank=r, size=size)] for r in range(size)]
    assert [i for s in slices for i in s] == list(range(count))
    assert max(map(len, slices)) - min(map(len, slices)) <= 1
