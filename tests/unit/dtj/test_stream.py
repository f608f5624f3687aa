"""Datasets that can only be read in order: each sample once per epoch, even if the world size changes."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import IterableDataset

from dtj.errors import RecipeError
from tests.unit.dtj.feeds import feed, in_changing_worlds, real

# Raised if a test has more workers than this machine has processors.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


class Stream(IterableDataset[int]):
    """Numbers in another order in each epoch; counts how many samples were read."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.epoch = 0
        self.reads = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        for i in torch.randperm(self.n, generator=torch.Generator().manual_seed(self.epoch)).tolist():
            self.reads += 1
            yield i


class Skipping(Stream):
    """A stream that can start anywhere, as those of Hugging Face can."""

    def skip(self, n: int) -> Iterator[int]:
        return iter(list(iter(Stream(self.n)))[n:])


def values(f: Any) -> list[int]:
    """This rank's samples of the next batch, without those of dummy micro-batches."""
    batch = f.batch()
    return [i for mb in batch.micro_batches if mb.weight for i in batch.fetch(mb).tolist()]


class Noisy(Stream):
    """Draws an order, and noise for each sample, from the global generator while it is read."""

    def __iter__(self) -> Iterator[Any]:
        for i in torch.randperm(self.n).tolist():
            yield i + 0.5 * torch.rand(())


@pytest.mark.parametrize("size", [1, 2])
def test_resumed_stream_draws_what_it_would_have_drawn(size: int) -> None:
    """Also if the samples before have to be read again, which draw noise too."""
    ranks = [feed(data=Noisy(10), rank=rank, size=size) for rank in range(size)]
    for _ in range(6):
        again = feed(data=Noisy(10), size=size)
        again.load_state_dict(ranks[0].state_dict())
        expected = [values(f) for f in ranks]
        assert values(again) == expected[0]
        for f in ranks:
            f.advance()


@in_changing_worlds
def test_epoch_is_complete_when_the_world_size_changes_at_every_step(
    n: int, batch: int, sizes: list[int], micro: int | None
) -> None:
    state, step, seen, ends = {"epoch": 1, "consumed": 0}, 0, [], False
    while not ends:
        size = sizes[step % len(sizes)]
        ranks = [feed(data=Stream(n), rank=r, size=size, batch=batch, micro=micro) for r in range(size)]
        for f in ranks:
            f.load_state_dict(state)
            seen += values(f)
            ends = f.batch().ends_epoch
            f.advance()
        state, step = ranks[0].state_dict(), step + 1
    assert sorted(seen) == list(range(n))
    assert state == {"epoch": 2, "consumed": 0, "global_batch": batch}


@given(samples=st.integers(1, 40), size=st.integers(1, 5), micro=st.none() | st.integers(1, 9))
def test_in_lockstep_all_ranks_have_equally_many_micro_batches(
    samples: int, size: int, micro: int | None
) -> None:
    ranks = [
        feed(data=Stream(samples), rank=r, size=size, batch=samples, micro=micro, in_lockstep=True)
        for r in range(size)
    ]
    batches = [f.batch() for f in ranks]
    assert len({len(b.micro_batches) for b in batches}) == 1
    assert sorted(i for f in ranks for i in real(f)) == list(range(samples))
    assert all(len(b.fetch(p)) == len(p.indices) for b in batches for p in b.micro_batches)
    assert sum(p.weight for b in batches for p in b.micro_batches) == pytest.approx(1)


def test_evaluation_reads_one_epoch() -> None:
    f = feed(data=(stream := Stream(10)), batch=4, once=True)
    assert sum(len(mb) for batch in f.epoch_once() for mb in batch) == 10
    assert stream.reads == 10


def test_rest_that_is_less_than_a_batch_of_another_size_is_left_out() -> None:
    before, after = (feed(data=Stream(10), batch=batch, drop_last=True) for batch in (3, 5))
    for _ in range(2):
        before.batch()
        before.advance()
    after.load_state_dict(before.state_dict())
    epoch = Stream(10)
    epoch.set_epoch(1)
    assert values(after) == values(after) == list(epoch)[:5]
    assert after.batch().epoch == 1
    after.advance()
    assert values(after) == list(epoch)[5:]

    larger = feed(data=Stream(10), batch=11, drop_last=True)
    larger.load_state_dict(before.state_dict())
    with pytest.raises(RecipeError, match="fewer samples than one global batch of 11"):
        larger.batch()


def test_stream_that_can_skip_is_not_read_from_the_start() -> None:
    f, stream = feed(data=(skipping := Skipping(100)), batch=5), Stream(100)
    f.load_state_dict({"epoch": 0, "consumed": 90})
    assert values(f) == list(stream)[90:95]
    assert skipping.reads == 0


def test_steps_per_epoch_are_known_if_the_stream_has_a_length() -> None:
    class Measured(Stream):
        def __len__(self) -> int:
            return self.n

    assert feed(data=Measured(10), batch=4).steps_per_epoch == 3
    short = feed(data=Measured(3), batch=4, drop_last=True)
    assert short.steps_per_epoch == 0
    assert short.checked_total(5, 0) == 5
    with pytest.raises(RecipeError, match=r"stream without __len__(.|\n)*Recipe\(steps=1000\)"):
        feed(data=Stream(10)).steps_per_epoch  # noqa: B018


def digests(*streams: Any) -> list[int]:
    """What the ranks compare, if each reads one of these streams."""
    found: list[int] = []
    for stream in streams:
        feed(batch=4, data=stream).check_alike(lambda number: (found.append(number), [number])[1])  # type: ignore[func-returns-value]
    return found


def test_ranks_that_read_the_same_stream_agree() -> None:
    class Noisy(Stream):
        def __iter__(self) -> Iterator[int]:
            torch.rand(self.reads)  # another state of the global generator on each rank
            return iter([i + float(torch.rand(())) for i in range(self.n)])  # type: ignore[misc]

    for kind in (Stream, Noisy):
        assert len(set(digests(kind(10), kind(10)))) == 1


def test_stream_that_divides_itself_among_ranks_is_refused() -> None:
    first, second = digests(range_of(0), range_of(1))
    assert first != second
    with pytest.raises(RecipeError, match="the stream Part yields other samples on each rank"):
        feed(batch=4, data=range_of(0)).check_alike(lambda number: [number, second])


def range_of(rank: int) -> Any:
    class Part(IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            return iter(range(rank, 20, 2))

    return Part()
