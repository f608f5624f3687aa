"""A loader of the user's own: which rank reads what, and where it continues."""

import sys
from collections import UserDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch.utils.data import (
    DataLoader,
    DistributedSampler,
    IterableDataset,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from dtj.data.digest import digest
from dtj.data.feed import Feed
from dtj.data.user_loader import UserLoader
from dtj.errors import RecipeError

CPU = torch.device("cpu")


def feed(loader: Any, *, rank: int = 0, size: int = 1, accumulate: int = 1) -> Feed:
    return Feed(UserLoader(loader, rank=rank, size=size, seed=3, accumulate=accumulate), device=CPU)


def divided(n: int = 12, batch: int = 2, **how: Any) -> "DataLoader[Any]":
    how = how if "batch_sampler" in how else {"batch_size": batch, "shuffle": True} | how
    return DataLoader(range(n), **how)  # type: ignore[arg-type]


def read(f: Feed, steps: int) -> list[int]:
    found = []
    for _ in range(steps):
        found += [int(sample) for micro_batch in f.batch() for sample in micro_batch]
        f.advance()
    return found


@pytest.mark.parametrize(("n", "size"), [(12, 3), (13, 3), (5, 1)])
@pytest.mark.parametrize("shuffle", [False, True])
def test_ranks_share_an_epoch(n: int, size: int, shuffle: bool) -> None:
    ranks = [feed(divided(n, shuffle=shuffle), rank=rank, size=size) for rank in range(size)]
    shares = [read(f, f.steps_per_epoch) for f in ranks]
    assert {sample for share in shares for sample in share} == set(range(n))
    assert len({len(share) for share in shares}) == 1  # the tail repeats a few
    assert sum(map(len, shares)) == -(-n // size) * size
    assert [f.epoch for f in ranks] == [1] * size


def test_order_of_epochs_differs() -> None:
    f = feed(divided())
    assert read(f, 6) != read(f, 6)


def test_drop_last_leaves_out_smaller_batches_and_repeats_nothing() -> None:
    ranks = [feed(divided(11, drop_last=True), rank=rank, size=2) for rank in range(2)]
    assert [f.steps_per_epoch for f in ranks] == [2, 2]  # a rank has 5 samples
    assert len({sample for f in ranks for sample in read(f, 2)}) == 8
    f = feed(divided(7, drop_last=True))
    assert len(read(f, f.steps_per_epoch)) == 6
    assert f.epoch == 1


def test_loader_without_a_batch_is_refused() -> None:
    with pytest.raises(RecipeError, match=r"DataLoader yields no batch\n.*with drop_last each rank"):
        feed(divided(3, drop_last=True), size=2)


class Undivided:
    def __init__(self, batch: object) -> None:
        self.batch = batch

    def __iter__(self) -> Iterator[object]:
        return iter([self.batch] * 3)


@pytest.mark.parametrize(
    ("loader", "of_rank_1", "is_noticed"),
    [
        (Undivided(torch.ones(2)), torch.ones(2), True),
        (Undivided(torch.ones(2)), torch.zeros(2), False),
        (Undivided(object()), object(), False),  # nothing to compare
        (Undivided(torch.eye(2).to_sparse()), object(), False),
        (divided(), torch.ones(2), False),
    ],
)
def test_ranks_notice_that_they_read_the_same_batches(
    loader: Any, of_rank_1: object, is_noticed: bool
) -> None:
    found = feed(loader, size=2).check_alike(lambda mine: [mine, mine and digest([of_rank_1])])
    assert ("every rank reads the same samples" in found) == is_noticed


@pytest.mark.parametrize(
    ("samplers", "is_noticed"),
    [
        pytest.param([SubsetRandomSampler(range(40))] * 2, True, id="both ranks shuffle the same samples"),
        pytest.param([SequentialSampler(range(10))] * 2, True, id="both ranks read the same part"),
        pytest.param([SubsetRandomSampler(range(n, 64, 2)) for n in range(2)], False, id="parts, shuffled"),
        pytest.param([WeightedRandomSampler([1.0] * 64, 64)] * 2, False, id="drawn with replacement"),
        pytest.param([DistributedSampler(range(64), 2, n) for n in range(2)], False, id="torch divides"),  # type: ignore[arg-type]
    ],
)
def test_sampler_that_does_not_divide_is_noticed(samplers: list[Any], is_noticed: bool) -> None:
    """Also if it shuffles: in training each rank has its own seed."""
    compared: list[list[int]] = [[], []]
    for rank, (sampler, mine) in enumerate(zip(samplers, compared, strict=True)):
        loader = DataLoader(range(64), batch_size=4, sampler=sampler)  # type: ignore[arg-type, var-annotated]
        feed(loader, rank=rank, size=2).check_alike(lambda n, mine=mine: (mine.append(n), [n])[1])  # type: ignore[misc]
    assert (compared[0] == compared[1]) == is_noticed


def test_sampler_over_fewer_samples_decides_which_are_read() -> None:
    f = feed(DataLoader(range(64), batch_size=5, sampler=SequentialSampler(range(10))))  # type: ignore[arg-type]
    assert read(f, 2) == list(range(10))
    assert f.epoch == 1


def test_loader_of_another_length_on_another_rank_is_refused() -> None:
    loader = DataLoader(range(9), batch_sampler=[[0], [1], [2]])  # type: ignore[arg-type, var-annotated]
    with pytest.raises(RecipeError, match="DataLoader has 2 batches on one rank, 3 on another\n"):
        feed(loader, size=2).check_alike(lambda mine: [mine, mine - 1])


@dataclass
class Item:
    """A batch of the user's own type."""

    x: Any


class Reusing:
    """Four batches in the same memory."""

    def __init__(self, wrap: Callable[[torch.Tensor], Any]) -> None:
        self.wrap = wrap

    def __iter__(self) -> Iterator[Any]:
        memory = torch.empty(1)
        batch = self.wrap(memory)
        for number in range(4):
            memory.fill_(number)
            yield batch


class Records(Reusing, IterableDataset[Any]):
    """The same as a dataset."""


MEMORY = torch.empty(1)


@pytest.mark.parametrize(
    ("loader", "value"),
    [
        pytest.param(Reusing(lambda memory: memory), lambda x: x, id="tensor"),
        pytest.param(
            Reusing(lambda memory: {"x": [memory]}), lambda x: x["x"][0], id="tensor in a structure"
        ),
        pytest.param(Reusing(lambda memory: memory.numpy()), lambda x: x, id="NumPy"),
        pytest.param(Reusing(lambda memory: UserDict(x=memory)), lambda x: x["x"], id="as a BatchEncoding"),
        pytest.param(Reusing(Item), lambda item: item.x, id="dataclass"),
        pytest.param(Reusing(lambda x: (x, sys.stdout)), lambda x: x[0], id="with what cannot be copied"),
        pytest.param(
            DataLoader(Records(lambda memory: memory.numpy()), batch_size=None),
            lambda x: x,
            id="of a dataset, as it is",
        ),
        pytest.param(
            DataLoader(range(4), collate_fn=lambda numbers: MEMORY.fill_(numbers[0])),  # type: ignore[arg-type]
            lambda x: x,
            id="of the collate function",
        ),
    ],
)
def test_loader_may_reuse_the_memory_of_a_batch(loader: Any, value: Callable[[Any], Any]) -> None:
    assert [value(mb).item() for mb in feed(loader, accumulate=4).batch()] == [0, 1, 2, 3]


def test_batch_that_is_none_is_refused() -> None:
    """As a collate function returns it if it leaves out all samples of a batch."""
    f = feed(divided(4, shuffle=False, collate_fn=lambda found: None if 2 in found else found))
    assert read(f, 1) == [0, 1]
    with pytest.raises(RecipeError, match=r"DataLoader yielded None instead of a batch\n.*collate_fn must"):
        read(f, 1)


@pytest.mark.parametrize("sizes", [(2, 2), (2, 3), (3, 1)])
def test_epoch_continues_with_another_number_of_ranks(sizes: tuple[int, int]) -> None:
    before, after = ([feed(divided(18), rank=rank, size=size) for rank in range(size)] for size in sizes)
    seen = [sample for f in before for sample in read(f, 1)]
    for f in after:
        f.load_state_dict(before[0].state_dict())
    while after[0].epoch == 0:
        seen += [sample for f in after for sample in read(f, 1)]
    assert set(seen) == set(range(18))
    assert len(seen) <= 18 + sizes[1] - 1  # no sample twice but those that fill up the tail


@pytest.mark.parametrize(("ranks", "batch", "keeps"), [(2, 4, True), (4, 2, True), (4, 4, False)])
def test_epochs_do_not_change_with_the_number_of_ranks(ranks: int, batch: int, keeps: bool) -> None:
    """Batches of one rank make other steps with more ranks, unless the program makes them smaller."""
    before, after = feed(divided(64, 4), size=2), feed(divided(64, batch), size=ranks)
    read(before, 20)  # 2.5 epochs
    after.load_state_dict(before.state_dict())
    total = 4 * after.steps_per_epoch
    if keeps:
        assert after.checked_total(total, 20) == total
        read(after, total - 20)
        assert (after.epoch, after.state_dict()["samples"]) == (4, 0)
    else:
        with pytest.raises(RecipeError, match=r"8 steps per epoch, this run has 4, so .*\n.*// run.size"):
            after.checked_total(total, 20)
        read(before, 12)
        after.load_state_dict(before.state_dict())
        assert after.checked_total(total, 32) == 32, "those epochs are done"


@pytest.mark.parametrize("seed", [None, 5])
def test_loader_that_is_used_as_it_is_continues_in_its_order(seed: int | None) -> None:
    """Also if the user gave it a generator, as torch's notes on reproducibility do."""

    class Own(DataLoader[Any]):
        pass

    def own() -> Feed:
        generator = None if seed is None else torch.Generator().manual_seed(seed)
        loader = Own(range(8), batch_size=2, shuffle=True, generator=generator)  # type: ignore[arg-type]
        return feed(loader, size=2, rank=1)

    expected = read(own(), 8)
    assert expected[:8] != expected[8:]
    for epoch in (0, 1):
        again = own()
        again.load_state_dict({"epoch": epoch, "batches": 1, "ranks": 2})
        assert read(again, 3) == expected[8 * epoch + 2 : 8 * epoch + 8]
    again.load_state_dict({"epoch": 1, "batches": 2, "ranks": 4})  # reads that epoch again
    assert read(again, 2) == expected[8:12]


def test_set_epoch_is_called() -> None:
    class Endless(IterableDataset[int]):
        def set_epoch(self, epoch: int) -> None:
            self.epoch = epoch

        def __iter__(self) -> Iterator[int]:
            return iter([self.epoch] * 3)

    f = feed(DataLoader(Endless(), batch_size=2), accumulate=2)
    assert read(f, 2) == [0, 0, 0, 1, 1, 1]
    assert f.epoch == 1
    with pytest.raises(RecipeError, match="the number of steps per epoch is unknown"):
        f.steps_per_epoch  # noqa: B018


class Part(IterableDataset[int]):
    """This rank's part of a stream: in each epoch another one, and as many samples as `lengths` says."""

    def __init__(self, *lengths: int) -> None:
        self.lengths = lengths

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        return iter(range(100 * self.epoch, 100 * self.epoch + self.lengths[self.epoch % len(self.lengths)]))


def parts(*, accumulate: int = 1) -> list[Feed]:
    lengths = ((4, 2, 3), (9,), (1,))
    return [
        feed(DataLoader(Part(*each), batch_size=2), rank=rank, size=3, accumulate=accumulate)
        for rank, each in enumerate(lengths)
    ]


def share(feeds: list[Feed]) -> None:
    """What each rank alone knows, with all ranks; there are two of each, which split one model."""
    rows: list[list[int]] = []

    def gather(mine: Sequence[int]) -> list[list[int]]:
        rows.extend([list(mine)] * 2)
        return [[rank, 0, 0] for rank in range(len(feeds))]

    for f in feeds:
        f.share(gather)
    for f in feeds:
        f.share(lambda _: rows)


@pytest.mark.parametrize("shared_after", [[], [1], [2, 5], [7], range(1, 8)])
@pytest.mark.parametrize("writer", range(3))
def test_each_rank_continues_its_part_from_the_state_of_any_rank(
    shared_after: list[int], writer: int
) -> None:
    """Of a stream without a length, which the user divided: the ranks are in different epochs."""
    before, after = parts(accumulate=2), parts(accumulate=2)
    for step in range(1, 8):
        for f in before:
            read(f, 1)
        if step in shared_after:
            share(before)
    assert len({f.epoch for f in before}) == 3
    assert {f.position for f in before} == {14}
    state = before[writer].state_dict()
    for f, again in zip(before, after, strict=True):
        again.load_state_dict(state)
        assert read(again, 5) == read(f, 5)


class Varying:
    """In each epoch it has another number of batches, as a sampler by tokens has."""

    lengths = (2, 5, 3)
    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return self.lengths[self.epoch % 3]

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(torch.tensor([[100 * self.epoch + n] for n in range(len(self))]))


@pytest.mark.parametrize("accumulate", [1, 2])
def test_epoch_continues_whatever_the_length_of_the_others(accumulate: int) -> None:
    steps = 10 // accumulate
    expected = read(feed(Varying(), accumulate=accumulate), steps)
    for done in range(steps):
        f, again = (feed(Varying(), accumulate=accumulate) for _ in range(2))
        before = read(f, done)
        again.load_state_dict(f.state_dict())
        assert before + read(again, steps - done) == expected
        assert again.checked_total(3 * again.steps_per_epoch, done) == 3 * again.steps_per_epoch
    assert expected[:8] == [0, 1, 100, 101, 102, 103, 104, 200]


def test_batch_that_is_loaded_ahead_does_not_count() -> None:
    """It is the first one of an epoch."""
    f, again = (feed(DataLoader(Part(4, 2), batch_size=2)) for _ in range(2))
    read(f, 2)
    expected = [int(sample) for micro_batch in f.batch() for sample in micro_batch]
    again.load_state_dict(f.state_dict())
    assert read(again, 1) == expected == [100, 101]


def test_part_without_a_length_begins_its_epoch_again_with_another_number_of_ranks() -> None:
    before = parts()
    for f in before:
        read(f, 3)  # rank 0 is in epoch 1
    again = feed(DataLoader(Part(4, 2, 3), batch_size=2))
    again.load_state_dict(before[0].state_dict())
    assert again.epoch == 1
    assert read(again, 2) == [100, 101, 200, 201]


def test_ranks_agree_on_the_divisor_of_their_counts() -> None:
    """The samples of batches of a loader of the user's own are only known to their rank."""
    sizes = ([4, 3], [4, 2, 1])
    batches = [
        feed(divided(batch_sampler=[range(n) for n in each]), rank=rank, size=2, accumulate=2).batch()
        for rank, each in enumerate(sizes)
    ]
    assert len({batch.samples for batch in batches}) == 2
    assert {batch.divisor for batch in batches} == {4}


def test_step_of_several_batches_weights_them_by_size() -> None:
    f = feed(divided(5), accumulate=4)
    batch = f.batch()
    assert [mb.weight for mb in batch.micro_batches] == [2 / 5, 2 / 5, 1 / 5]
    assert batch.ends_epoch


@pytest.mark.parametrize("batch_sampler", [None, [[0, 1], [2, 3], [4]]])
def test_weights_of_batches_do_not_depend_on_the_shape_of_their_tensors(batch_sampler: Any) -> None:
    """A batch may be a list of texts, or have another dimension first: only a loader knows its samples."""
    texts = [torch.ones(n) for n in (100, 1, 1, 1, 1)]
    how = {"batch_sampler": batch_sampler} if batch_sampler else {"batch_size": 2}
    batch = feed(DataLoader(texts, collate_fn=list, **how), accumulate=3).batch()  # type: ignore[arg-type]
    sizes = (1, 1, 1) if batch_sampler else (2, 2, 1)
    assert [mb.weight for mb in batch.micro_batches] == [n / sum(sizes) for n in sizes]


def test_last_batch_of_an_own_sampler_has_the_weight_of_its_samples() -> None:
    loader = DataLoader(range(5), batch_size=2, sampler=[3, 1, 0, 2, 4])  # type: ignore[arg-type, var-annotated]
    batch = feed(loader, accumulate=3).batch()
    assert ([mb.weight for mb in batch.micro_batches], batch.samples) == ([2 / 5, 2 / 5, 1 / 5], 5)


def test_weights_of_all_ranks_add_up_to_one() -> None:
    data = TensorDataset(torch.zeros(24, 3), torch.zeros(24))
    batches = [feed(DataLoader(data, 4), rank=r, size=3, accumulate=2).batch() for r in range(3)]
    assert sum(mb.weight for b in batches for mb in b.micro_batches) == pytest.approx(1)
    assert {b.samples for b in batches} == {24}


@pytest.mark.parametrize(
    ("loader", "accumulate", "message"),
    [
        pytest.param(iter([1]), 1, "can be read only once", id="an iterator"),
        pytest.param(TensorDataset(torch.zeros(2)), 1, "expected a loader", id="a data set"),
        pytest.param(divided(), 0, "accumulate is 0", id="no batch in a step"),
    ],
)
def test_unusable_loader_is_refused(loader: Any, accumulate: int, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        feed(loader, accumulate=accumulate)


def test_loader_that_is_shorter_than_its_length_is_refused() -> None:
    class Short:
        def __len__(self) -> int:
            return 3

        def __iter__(self) -> Iterator[torch.Tensor]:
            return iter([torch.zeros(1)])

    f = feed(Short(), accumulate=2)
    with pytest.raises(RecipeError, match="Short ended 2 batches before its length says"):
        f.batch()


def test_state_of_other_data_is_refused() -> None:
    with pytest.raises(RecipeError, match="made with other data"):
        feed(divided()).load_state_dict({"position": 4, "length": 12, "seed": 0})
