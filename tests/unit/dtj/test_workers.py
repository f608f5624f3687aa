"""Worker processes that load samples: same samples, same order, and no process outlives its rank."""

import random
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import IterableDataset

from dtj import random_state
from dtj.data import loader
from dtj.errors import RecipeError
from tests.unit.dtj.feeds import feed, real

# Raised if a test has more workers than this machine has processors.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


class Augmented:
    """Samples with noise from the random generators of the process that loads them."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> torch.Tensor:
        return index + noise()


def noise() -> torch.Tensor:
    """() in [0, 0.5), from all generators that a dataset may use."""
    return (torch.rand(()) + random.random() + float(np.random.random())) / 6


def batches(f: Any, count: int) -> list[torch.Tensor]:
    found = []
    for _ in range(count):
        found += list(f.batch())
        f.advance()
    f.close()
    return found


def test_workers_load_the_same_samples_as_the_rank_itself() -> None:
    alone, helped = feed(40, batch=6, micro=2), feed(40, batch=6, micro=2, workers=3)
    expected, found = batches(alone, 15), batches(helped, 15)
    assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))


class InOrder(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(40))


def noisy(samples: list[int]) -> torch.Tensor:
    """A collate that augments."""
    return torch.stack([sample + noise() for sample in samples])


@pytest.mark.parametrize(
    ("how", "state"),
    [
        pytest.param({"data": Augmented()}, {"position": 24, "length": 40, "seed": 0}, id="map-style"),
        pytest.param({"data": InOrder(), "collate": noisy}, {"epoch": 0, "consumed": 24}, id="stream"),
    ],
)
@pytest.mark.parametrize("workers", [0, 3])
def test_noise_depends_only_on_the_samples_so_a_resumed_run_repeats_it(
    how: dict[str, Any], state: dict[str, int], workers: int
) -> None:
    """The stages of a pipeline need this too: one stage loads the inputs, another the targets."""
    whole = batches(feed(batch=8, micro=2, workers=2, **how), 5)
    later = feed(batch=8, micro=2, workers=workers, **how)
    later.load_state_dict(state)
    random_state.begin(0, step=3, verb=1, stream=workers, device=torch.device("cpu"))  # as another rank
    assert all(torch.equal(a, b) for a, b in zip(whole[12:], batches(later, 2), strict=True))
    assert len({(sample % 1).item() for batch in whole for sample in batch}) > 30, (
        "each sample has its own noise"
    )


def test_finished_batch_is_freed() -> None:
    f = feed(40, batch=8, workers=1)
    done = weakref.ref(next(iter(f.batch())))
    assert done() is not None
    f.advance()
    next(iter(f.batch()))
    f.close()
    assert done() is None


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("data", [Augmented(), InOrder()], ids=["map-style", "stream"])
def test_loading_samples_does_not_change_the_random_numbers_of_dropout(data: Any, workers: int) -> None:
    random_state.seed(4)
    expected = noise()
    random_state.seed(4)
    batches(feed(data=data, collate=noisy, batch=8, workers=workers), 5)
    assert torch.equal(noise(), expected)


def test_workers_restart_when_the_position_jumps() -> None:
    """As after taking over the state of another rank or of a checkpoint."""
    f = feed(40, batch=8, workers=2)
    for position in (0, 24, 8):
        f.load_state_dict({"position": position, "length": 40, "seed": 0})
        assert next(iter(f.batch())).tolist() == real(f)
    f.close()


@pytest.mark.filterwarnings("ignore:Got pickle error")  # newer versions of torch also warn
def test_dataset_that_cannot_be_sent_to_a_worker_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """If workers are not forked, as on macOS, the dataset itself is pickled."""

    class Secret(Augmented):
        pass

    monkeypatch.setattr(loader, "_START", "spawn")
    f = feed(data=Secret(), batch=4, workers=1)
    with pytest.raises(RecipeError, match="the dataset Secret cannot be sent between a rank and its worker"):
        next(iter(f.batch()))
