"""W ranks with b samples each train the same model as one rank with W x b."""

import functools
from collections.abc import Callable
from itertools import chain
from pathlib import Path

import pytest
import torch

from tests.process.dtj.conftest import PROGRAMS, Finished

Finish = Callable[..., Finished]


def weights(out: Path) -> dict[str, torch.Tensor]:
    """The final weights in the folder of a run."""
    found: dict[str, torch.Tensor] = torch.load(out / "weights.pt")["model"]
    return found


def seen(out: Path, step: int) -> list[int]:
    """Samples of one step over all ranks."""
    lines = [
        line.split() for file in sorted(out.glob("seen-*.txt")) for line in file.read_text().splitlines()
    ]
    return sorted(int(i) for line in lines if int(line[0]) == step for i in line[1:])


@pytest.fixture(scope="module")
def trained(finish_once: Finish, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Returns the folder of a run with these flags; each is run once.

    It has 20 steps, two epochs and some; the last batch of an epoch has 2 of 12 samples.
    """

    def folder(*flags: object) -> Path:
        out = tmp_path_factory.mktemp("same-result")
        ended = finish_once("run", *flags, PROGRAMS / "small.py", OUT=out, PLAIN=1)
        assert ended.code == 0, ended.err
        return out

    return functools.cache(folder)


@pytest.mark.parametrize(
    "flags",
    [
        pytest.param(("--nproc", 2), id="two ranks"),
        pytest.param(
            ("--nproc", 4), id="four ranks, two of which have no sample in the last batch of an epoch"
        ),
        pytest.param(("--nproc", 1, "--micro-batch", 5), id="one rank in uneven micro-batches"),
        pytest.param(("--nproc", 2, "--micro-batch", 4), id="two ranks in uneven micro-batches"),
    ],
)
def test_same_weights_as_one_rank(trained: Callable[..., Path], flags: tuple[object, ...]) -> None:
    alone, together = trained(), trained(*flags)
    torch.testing.assert_close(weights(together), weights(alone), rtol=1e-4, atol=1e-6)
    assert all(seen(alone, s) == seen(together, s) for s in range(20))


def test_each_epoch_has_every_sample_once_in_a_new_order(trained: Callable[..., Path]) -> None:
    out = trained("--nproc", 2)
    steps = [seen(out, s) for s in range(18)]
    assert sorted(chain(*steps[:9])) == list(range(98))
    assert sorted(chain(*steps[9:])) == list(range(98))
    assert steps[:9] != steps[9:]
