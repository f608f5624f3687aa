"""A short run of everything that can go wrong; `python -m tests.bench chaos` is the long one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos import run as chaos
from tests.integration.controlplane import ControlPlane

SEED = 1
# A label that is taken off at the wrong moment can still hide a child from the operator, see docs/limits.md:
# the long runs count that. They also have the time that an API server takes to start again.
WITHOUT = frozenset({"relabel_pod", "relabel_network", "restart_apiserver"})


@pytest.mark.timeout(300)
async def test_a_hundred_faults_and_no_violation(granted: ControlPlane, namespace: str, tmp_path: Path):
    result = await chaos.run(granted, namespace, tmp_path, seed=SEED, faults=100, jobs=8, without=WITHOUT)

    assert result.violations == []
    assert result.faults.total() == 100
    assert len(result.faults) >= 20, "of many kinds"
