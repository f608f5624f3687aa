"""W ranks with b samples each train the same model as one rank with W x b."""

from collections.abc import Callable
from itertools import chain
from pathlib import Path

import pytest
import torch

from tests.process.dtj.conftest import PROGRAMS, Finished

Finish = Callable[..., Finished]


def trained(finish: Finish, out: Path, *flags: object, **env: object) -> dict[str, torch.Tensor]:
    """Weights after 20 steps, two epochs and some; the last batch of an epoch has 2 of 12 samples."""
    out.mkdir()
    ended = finish("run", *flags, PROGRAMS / "small.py", OUT=out, PLAIN=1, **env)
    assert ended.code == 0, ended.err
    return weights(out)


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
def alone(finish_once: Finish, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of one rank."""
    folder = tmp_path_factory.mktemp("same-result") / "alone"
    trained(finish_once, folder)
    return folder


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
def test_same_weights_as_one_rank(
    finish: Finish, alone: Path, tmp_path: Path, flags: tuple[object, ...]
) -> None:
    together = trained(finish, tmp_path / "together", *flags)
    for name, weight in weights(alone).items():
        torch.testing.assert_close(together[name], weight, rtol=1e-4, atol=1e-6)
    assert all(seen(alone, s) == seen(tmp_path / "together", s) for s in range(20))


def test_each_epoch_has_every_sample_once_in_a_new_order(finish: Finish, tmp_path: Path) -> None:
    trained(finish, tmp_path / "out", "--nproc", 2)
    steps = [seen(tmp_path / "out", s) for s in range(18)]
    assert sorted(chain(*steps[:9])) == list(range(98))
    assert sorted(chain(*steps[9:])) == list(range(98))
    assert steps[:9] != steps[9:]
