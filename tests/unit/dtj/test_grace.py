"""The warning, in advance, that a pod would be killed before it can save."""

import pytest

from dtj.agent.replica.grace import warning


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
