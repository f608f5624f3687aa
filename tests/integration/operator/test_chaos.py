"""A short run of everything that can go wrong; `python -m tests.bench chaos` is the long one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos import run as chaos
from tests.integration.controlplane import ControlPlane

SEED = 1
WITHOUT = frozenset({"restart_apiserver"})  # takes too long for a short run


@pytest.mark.timeout(900)
@pytest.mark.long(38)
async def test_a_hundred_faults_and_no_violation(granted: ControlPlane, namespace: str, tmp_path: Path):
    result = await chaos.run(granted, namespace, tmp_path, seed=SEED, faults=100, jobs=8, without=WITHOUT)

    assert result.violations == []
    assert result.faults.total() == 100
    assert len(result.faults) >= 20, "faults of many kinds"
