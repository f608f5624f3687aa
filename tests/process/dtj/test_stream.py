"""Datasets that can only be read in order: each sample once per epoch, even if the world size changes."""

import contextlib
from collections.abc import Iterator

import pytest
from torch.utils.data import get_worker_info

from dtj.errors import RecipeError
from tests.unit.dtj.feeds import feed
from tests.unit.dtj.test_stream import Stream, values

# Raised if a test has more workers than this machine has processors.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_each_epoch_is_read_in_its_own_order(workers: int) -> None:
    f = feed(data=Stream(10), batch=4, workers=workers)
    found, batches = [], []
    for _ in range(6):
        batches.append(f.batch())
        found += values(f)
        f.advance()
    f.close()
    assert [(b.samples, b.epoch, b.ends_epoch) for b in batches] == [
        *((4, 0, False), (4, 0, False), (2, 0, True)),
        *((4, 1, False), (4, 1, False), (2, 1, True)),
    ]
    assert sorted(found[:10]) == sorted(found[10:]) == list(range(10))
    assert found[:10] != found[10:]
    assert f.consumed == 20


class Divided(Stream):
    """A stream that divides itself among the workers, as torch's own DataLoader requires."""

    def __iter__(self) -> Iterator[int]:
        worker = get_worker_info()
        numbers = list(super().__iter__())
        return iter(numbers[worker.id :: worker.num_workers] if worker else numbers)


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_stream_that_divides_itself_among_workers_is_read_completely(workers: int) -> None:
    f = feed(data=Divided(20), batch=4, workers=workers)
    found = []
    for _ in range(5):
        found += values(f)
        f.advance()
    f.close()
    assert found == list(Stream(20))


@pytest.mark.parametrize(
    ("n", "state", "message"),
    [
        pytest.param(0, {"epoch": 0, "consumed": 0}, "the stream is empty", id="empty"),
        pytest.param(7, {"epoch": 0, "consumed": 8}, "no samples after the 8 that", id="shorter"),
        pytest.param(
            7,
            {"position": 8, "length": 9, "seed": 0},
            "with a map-style dataset; this one is a stream",
            id="map-style",
        ),
    ],
)
@pytest.mark.parametrize("workers", [0, 2])
def test_stream_that_differs_from_the_saved_one_is_refused(
    n: int, state: dict[str, int], message: str, workers: int
) -> None:
    def resume() -> None:
        # Closed: torch remembers the pids of ended workers until then, and may take others for them.
        with contextlib.closing(feed(data=Stream(n), workers=workers)) as f:
            f.load_state_dict(state)
            f.batch()

    with pytest.raises(RecipeError, match=message):
        resume()
