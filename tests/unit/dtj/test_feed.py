"""Global batches, and this rank's part of them."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.data import DataLoader, TensorDataset, default_collate

from dtj.data.loader import Pair, look_up
from dtj.data.splitter import Splitter
from dtj.errors import RecipeError
from tests.unit.dtj.feeds import feed, in_changing_worlds, real
from tests.unit.dtj.test_stream import Stream


@in_changing_worlds
def test_epoch_is_complete_when_the_world_size_changes_at_every_step(
    n: int, batch: int, sizes: list[int], micro: int | None
) -> None:
    position, step, seen = 0, 0, []
    while position < n:
        size = sizes[step % len(sizes)]
        ranks = [feed(n, rank=r, size=size, batch=batch, micro=micro) for r in range(size)]
        for f in ranks:
            f.load_state_dict({"position": position, "length": n, "seed": 0})
            seen += real(f)
            now = f.batch()
            f.advance()
        position, step = ranks[0].position, step + 1
    assert sorted(seen) == list(range(n))
    assert now.ends_epoch


@given(
    n=st.integers(1, 60),
    batch=st.integers(1, 60),
    size=st.integers(1, 7),
    micro=st.none() | st.integers(1, 9),
)
def test_weights_of_all_ranks_add_up_to_one(n: int, batch: int, size: int, micro: int | None) -> None:
    batches = [feed(n, rank=r, size=size, batch=batch, micro=micro).batch() for r in range(size)]
    assert sum(mb.weight for b in batches for mb in b.micro_batches) == pytest.approx(1)
    assert all(b.micro_batches for b in batches)  # a rank without a sample still joins the collectives


def test_state_is_the_position_with_length_and_seed() -> None:
    f = feed(10, batch=4)
    f.batch()
    f.advance()
    assert f.state_dict() == {"position": 4, "length": 10, "seed": 0, "global_batch": 4}


@pytest.mark.parametrize(
    ("state", "message"),
    [
        pytest.param(
            {"position": 4, "length": 11, "seed": 0},
            "a dataset of 11 samples; this one has 10\n  fix: use the same dataset",
            id="another dataset",
        ),
        pytest.param(
            {"position": 4, "length": 10, "seed": 7},
            "with seed 7; this run has seed 0\n  fix: use the same seed",
            id="another order",
        ),
        pytest.param(
            {"epoch": 0, "consumed": 4}, "with a stream; this dataset is map-style", id="of a stream"
        ),
    ],
)
def test_position_in_another_dataset_is_refused(state: dict[str, int], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        feed(10).load_state_dict(state)


@pytest.mark.parametrize("shuffle", [True, False])
def test_each_epoch_has_a_new_order_unless_shuffle_is_off(shuffle: bool) -> None:
    f = feed(30, batch=30, shuffle=shuffle)
    orders = []
    for _ in range(3):
        orders.append(real(f))
        f.advance()
    in_order = list(range(30))
    assert [sorted(each) for each in orders] == [in_order] * 3
    assert len({tuple(each) for each in [*orders, in_order]}) == (4 if shuffle else 1)


def test_last_batch_of_an_epoch_is_smaller_and_ends_the_epoch() -> None:
    f = feed(10, batch=4)
    batches = []
    for _ in range(4):
        batches.append(f.batch())
        f.advance()
    assert [(b.samples, b.epoch, b.ends_epoch) for b in batches] == [
        (4, 0, False),
        (4, 0, False),
        (2, 0, True),
        (4, 1, False),
    ]
    assert f.steps_per_epoch == 3


class Named(NamedTuple):
    image: torch.Tensor
    label: int


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        pytest.param(TensorDataset(torch.arange(3), torch.arange(3) * 2), Pair, id="two tensors are a pair"),
        pytest.param([(torch.tensor(i), 2 * i) for i in range(3)], Pair, id="items of two are a pair"),
        pytest.param([(i, i, i) for i in range(3)], tuple, id="items of three are a tuple"),
        pytest.param(
            [Named(torch.tensor(i), i) for i in range(3)], Named, id="named tuples keep their names"
        ),
        pytest.param([{"x": i} for i in range(3)], dict, id="dicts stay dicts"),
        pytest.param(TensorDataset(torch.arange(3)), tuple, id="one tensor is a tuple of one"),
    ],
)
def test_structure_of_a_micro_batch(data: Any, expected: type) -> None:
    assert type(next(iter(feed(data=data).batch()))) is expected


def test_samples_keep_their_memory_format() -> None:
    images = torch.zeros(4, 3, 5, 5).to(memory_format=torch.channels_last)
    (found,) = next(iter(feed(data=TensorDataset(images), batch=2).batch()))
    assert found.is_contiguous(memory_format=torch.channels_last)


def test_samples_may_be_on_the_accelerator_already() -> None:
    with FakeTensorMode(allow_non_fake_inputs=True):  # knows the devices of tensors, and needs none
        images = TensorDataset(torch.empty(4, 3, device="cuda"))
        (found,) = look_up(images, np.array([3, 0]), default_collate, seed=0, position=0)
    assert (found.shape, found.device.type) == ((2, 3), "cuda")


class Doubled(TensorDataset):
    def __getitem__(self, index: int) -> tuple[torch.Tensor, ...]:
        return tuple(2 * column[index] for column in self.tensors)


def test_subclass_of_tensor_dataset_uses_its_own_getitem() -> None:
    f = feed(data=Doubled(torch.arange(4)), batch=4)
    assert sorted(next(iter(f.batch()))[0].tolist()) == [0, 2, 4, 6]


class Many:
    """Looks up all samples of a micro-batch at once, as Hugging Face datasets do."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        raise AssertionError("one by one")

    def __getitems__(self, indices: list[int]) -> list[int]:
        return [10 * index for index in indices]


def test_getitems_is_called_once_for_a_micro_batch() -> None:
    assert sorted(next(iter(feed(data=Many(), batch=4).batch())).tolist()) == [0, 10, 20, 30]


@pytest.mark.parametrize("stream", [False, True])
def test_wait_for_samples_is_measured(monkeypatch: pytest.MonkeyPatch, stream: bool) -> None:
    clock = SimpleNamespace(now=0.0)

    def slow(samples: list[int]) -> torch.Tensor:
        clock.now += 3.0
        return torch.tensor(samples)

    monkeypatch.setattr("dtj.data.feed.time", SimpleNamespace(perf_counter=lambda: clock.now))
    f = feed(data=Forward() if stream else range(8), batch=4, collate=slow)
    for _ in range(2):
        list(f.batch())
        clock.now += 100.0  # the step
        f.advance()
    assert f.waited_s == 6.0


class Forward:
    def __iter__(self) -> Iterator[int]:
        return iter(range(8))


def test_stream_is_read_whatever_the_default_device() -> None:
    with torch.device("meta"):
        assert list(feed(data=Forward(), batch=4, collate=tuple).batch()) == [(0, 1, 2, 3)]


def test_pair_holds_the_samples_asked_for() -> None:
    f = feed(data=[(torch.tensor(i), 2 * i) for i in range(3)], batch=2)
    pair, wanted = next(iter(f.batch())), real(f)
    assert pair.x.tolist() == wanted
    assert pair.y.tolist() == [2 * i for i in wanted]


class Unmeasured:
    def __getitem__(self, index: int) -> int:
        return index


@pytest.mark.parametrize(
    ("data", "message"),
    [
        pytest.param(Unmeasured(), "Unmeasured has no length.*\n.*__len__", id="an index without length"),
        pytest.param((i for i in range(3)), "generator, which can be read only once", id="a generator"),
        pytest.param([], "the dataset is empty", id="an empty list"),
    ],
)
def test_unusable_data_is_refused_with_a_reason(data: Any, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        feed(data=data)


@pytest.mark.parametrize("batch", [0, 4.0, "4", None])
def test_global_batch_that_is_not_a_number_of_samples_is_refused(batch: Any) -> None:
    with pytest.raises(
        RecipeError, match=f"global_batch is {batch!r}, expected a whole number of at least 1"
    ):
        feed(batch=batch)


def test_global_batch_of_numpy_is_stored_as_a_plain_number() -> None:
    found = feed(batch=np.int64(4))  # type: ignore[arg-type]
    assert type(found.state_dict()["global_batch"]) is int


@settings(max_examples=40)
@given(samples=st.integers(1, 60), size=st.integers(1, 5), micro=st.none() | st.integers(1, 9))
def test_in_lockstep_all_ranks_have_equally_many_micro_batches_and_each_sample_counts_once(
    samples: int, size: int, micro: int | None
) -> None:
    ranks = [
        feed(samples, rank=r, size=size, batch=samples, micro=micro, in_lockstep=True) for r in range(size)
    ]
    found = [f.batch().micro_batches for f in ranks]
    assert len({len(each) for each in found}) == 1
    assert sorted(i for f in ranks for i in real(f)) == list(range(samples))
    assert sum(mb.weight for each in found for mb in each) == pytest.approx(1)


@pytest.mark.parametrize(
    ("samples", "micro", "wanted", "size"),
    [
        pytest.param(16, None, 8, 2, id="as many as wanted"),
        pytest.param(6, None, 8, 1, id="fewer if there are fewer samples"),
        pytest.param(12, 5, 8, 4, id="the largest size up to micro_batch that divides the samples"),
        pytest.param(7, 3, 8, 1, id="a prime number of samples"),
        pytest.param(12, 5, None, 5, id="not pipelined, the last may be smaller"),
        pytest.param(12, None, None, 12, id="one micro-batch"),
    ],
)
def test_size_of_micro_batches(samples: int, micro: int | None, wanted: int | None, size: int) -> None:
    assert Splitter(micro_batch=micro, pipeline_micro_batches=wanted).micro_batch_size(samples) == size


@given(
    n=st.integers(1, 60),
    batch=st.integers(1, 60),
    size=st.integers(1, 5),
)
def test_evaluation_counts_each_sample_once(n: int, batch: int, size: int) -> None:
    """What `run.evaluate` reads: one epoch in order, with equally many batches on every rank."""
    ranks = [list(feed(n, rank=r, size=size, batch=batch, shuffle=False).epoch_once()) for r in range(size)]
    assert len({len(batches) for batches in ranks}) == 1
    found = [mb for batches in ranks for b in batches for mb in b.micro_batches if mb.weight]
    assert sorted(i for mb in found for i in mb.indices.tolist()) == list(range(n))


@pytest.mark.parametrize(("once", "verb"), [(False, "data"), (True, "evaluate")])
def test_data_loader_is_refused(once: bool, verb: str) -> None:
    with pytest.raises(
        RecipeError, match=rf"a DataLoader, which yields batches.*\n?.*run.{verb}\(.*loader.dataset"
    ):
        feed(data=DataLoader(TensorDataset(torch.ones(4, 2)), batch_size=2), once=once)


@pytest.mark.parametrize(
    "data", [pytest.param(None, id="with an index"), pytest.param(Stream(10), id="a stream")]
)
def test_drop_last_leaves_out_a_smaller_last_batch(data: Any) -> None:
    f = feed(10, batch=4, data=data, drop_last=True)
    assert data or f.steps_per_epoch == 2
    for epoch in range(2):
        samples = []
        for step in range(2):
            batch = f.batch()
            samples += real(f)
            assert (batch.epoch, batch.samples, batch.ends_epoch) == (epoch, 4, step == 1)
            f.advance()
        assert len(set(samples)) == 8


@pytest.mark.parametrize("data", [None, Stream(3)])
def test_data_without_a_whole_batch_is_refused(data: Any) -> None:
    with pytest.raises(RecipeError, match=r"fewer (samples )?than one global batch of 4"):
        feed(3, batch=4, data=data, drop_last=True).batch()


def test_equal_shares() -> None:
    ranks = [feed(10, rank=rank, size=2, batch=4, equal_shares=True) for rank in range(2)]
    assert [f.steps_per_epoch for f in ranks] == [2, 2]
    assert [len(real(f)) for f in ranks] == [2, 2]
    with pytest.raises(
        RecipeError, match=r"global_batch is 4, which 3 ranks cannot share equally\n.* use 3,"
    ):
        feed(10, size=3, batch=4, equal_shares=True)


def test_dataset_that_is_divided_among_the_ranks_already_is_named() -> None:
    """Each rank would use a part of its part."""

    def pairs(samples: list[int]) -> torch.Tensor:
        assert len(samples) % 2 == 0, "only whole pairs can be collated"
        return torch.tensor(samples)

    found: list[int] = []
    for data in (range(0, 20, 2), range(0, 20, 2), range(1, 20, 2)):
        feed(data=data, collate=pairs).check_alike(lambda number: (found.append(number), [number])[1])  # type: ignore[func-returns-value]
    assert found[0] == found[1] != found[2]
    warning = feed().check_alike(lambda _: found)
    assert "the dataset range has another first sample on each rank" in warning
    opened: list[int] = []
    assert feed(workers=1).check_alike(lambda number: (opened.append(number), [number])[1]) == ""  # type: ignore[func-returns-value]
    assert not opened, "with workers, this process reads no sample: each may open the files itself"
