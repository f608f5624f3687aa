"""The warning, in advance, that a pod would be killed before it can save."""

from collections.abc import Callable
from pathlib import Path

import pytest

from dtj.agent.replica.grace import warning
from tests.process.dtj.conftest import PROGRAMS, Finished


@pytest.mark.parametrize(
    ("grace_s", "save_s", "step_s", "advised"),
    [
        pytest.param(30, 10, 1, None, id="enough"),
        pytest.param(30, 41, 0, "at least 87", id="the save is too long"),
        pytest.param(30, 10, 20, "at least 65", id="the step is too long"),
        pytest.param(None, 1000, 1, None, id="no pod, no limit"),
        pytest.param(0, 0.1, 0.1, "at least 5", id="no grace period"),
    ],
)
def test_warning(grace_s: float | None, save_s: float, step_s: float, advised: str | None) -> None:
    found = warning(grace_s, save_s=save_s, step_s=step_s)
    assert (advised in found) if advised and found else found == advised


@pytest.mark.parametrize(("grace_s", "times"), [(1, 1), (600, 0)])
def test_pod_warns_once_that_its_grace_period_is_too_short(
    finish: Callable[..., Finished], tmp_path: Path, grace_s: int, times: int
) -> None:
    flags = (
        "run",
        "--nproc",
        2,
        "--checkpoint",
        tmp_path / "saved",
        "--save-every",
        4,
        PROGRAMS / "small.py",
    )
    ended = finish(*flags, OUT=tmp_path, PLAIN=1, STEPS=16, DTJ_GRACE_SECONDS=grace_s)
    assert ended.code == 0, ended.err
    assert ended.err.count(f"but the pod is killed {grace_s} s after it is asked to terminate") == times
