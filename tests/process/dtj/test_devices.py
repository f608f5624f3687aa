"""A rank with several devices, for a model that places its own parts on them."""

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.process.dtj.conftest import Finished, losses

EXAMPLE = Path(__file__).parents[3] / "examples" / "two-devices.yaml"
Finish = Callable[..., Finished]


def test_example_with_two_devices_has_the_losses_of_one_process(finish: Finish, tmp_path: Path) -> None:
    """On a CPU both devices of a rank are the CPU: this tests flags, loop and DDP, not the placement."""
    program = tmp_path / "train.py"
    program.write_text(next(yaml.safe_load_all(EXAMPLE.read_text()))["data"]["train.py"])
    found = []
    for flags in (("--nproc", 1), ("--nproc", 2, "--devices", 2)):
        ended = finish("run", "--log-every", 40, *flags, program)
        assert ended.code == 0, ended.err
        found.append(losses(ended.out))
    alone, split = found
    assert split == pytest.approx(alone, abs=2e-4)
    assert alone[-1] < alone[0] / 2
