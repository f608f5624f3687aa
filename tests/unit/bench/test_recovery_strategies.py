"""When all ranks did a new step after a fault, from the logs of the pods."""

import pytest

from tests.bench.recovery_strategies import new_step_at
from tests.bench.recovery_times import Line


def log(text: str) -> list[Line]:
    """`9 0:4` is step 4 of rank 0 at 9; `8 began` a start."""
    found = []
    for each in text.split(", "):
        at, _, what = each.partition(" ")
        rank, _, step = what.partition(":")
        found.append(
            Line(at=float(at), text=f"[rank {rank}] did step {step}" if step else f"[rank 0] {what}")
        )
    return found


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        pytest.param(
            "9 0:4, 9 1:4, 12 began, 13 0:3, 13 1:3, 14 0:4, 14 1:4, 15 0:5, 16 1:5", (16.0, 2), id="repeats"
        ),
        pytest.param("9 0:4, 9 1:4, 12 began, 13 0:5, 14 1:5", (14.0, 0), id="repeats nothing"),
        pytest.param(
            "9 0:4, 11 1:5, 12 began, 13 0:5, 13 1:5, 14 0:6, 15 1:6", (15.0, 1), id="under way at the fault"
        ),
        pytest.param("9 0:4, 9 1:4, 11 0:5", None, id="no rank has started again"),
        pytest.param("9 0:4, 9 1:4, 12 began, 13 0:5, 13 1:4", None, id="one rank has no new step"),
        pytest.param("9 0:4, 9 1:4, 12 began", None, id="no step yet"),
    ],
)
def test_new_step(lines: str, expected: tuple[float, int] | None):
    assert new_step_at(log(lines), 10.0, ranks=2) == expected
