"""The warning, in advance, that a pod would be killed before it can save."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.process.dtj.conftest import PROGRAMS, Finished


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
