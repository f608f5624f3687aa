"""When a job trains again after a rank was killed, from the ranks' logs of steps."""

import pytest

from tests.bench.goodput_truth import parse
from tests.bench.recovery_local import trains_again_at


@pytest.mark.parametrize(
    ("killed", "other", "expected"),
    [
        pytest.param(
            "1 start 7, 9 4, 12 start 8, 14 5", "1 start 6, 9 4, 15 5", 15, id="the last of all ranks"
        ),
        pytest.param(
            "1 start 7, 9 4, 12 start 8, 14 5",
            "1 start 6, 9 4, 11 5, 16 6",
            16,
            id="a step under way at the fault does not count",
        ),
        pytest.param("1 start 7, 9 4", "1 start 6, 9 4, 11 5", None, id="the rank has not restarted"),
        pytest.param("1 start 7, 9 4, 12 start 8", "1 start 6, 9 4, 13 5", None, id="no step yet"),
    ],
)
def test_trains_again(killed: str, other: str, expected: float | None):
    books = [parse(each.replace(", ", "\n") + "\n") for each in (killed, other)]
    assert trains_again_at(books, 0, fault=10) == expected
