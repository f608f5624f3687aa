"""Productive seconds, from the log of steps that each rank writes."""

import pytest

from tests.bench.goodput_truth import Line, parse, productive


def book(text: str) -> list[Line]:
    return parse(text.replace(", ", "\n") + "\n")


@pytest.mark.parametrize(
    ("books", "seconds"),
    [
        pytest.param(["0 start, 10 1, 11 2, 12 3", "0 start"], 2, id="start-up is not productive"),
        pytest.param(
            ["0 start, 10 1, 11 2, 15 3, 16 4", "0 start, 13 start"], 2, id="another rank restarted"
        ),
        pytest.param(
            ["0 start, 10 1, 11 2, 14 start, 15 3, 16 4", "0 start"], 2, id="the rank itself restarted"
        ),
        pytest.param(
            ["0 start, 10 1, 11 2, 12 3, 14 start, 15 2, 16 3, 17 4", "0 start"], 3, id="repeated steps"
        ),
        pytest.param(
            ["0 start, 10 1, 11 2, 12 3, 90 4, 91 5", "0 start"], 2, id="after the end of the measurement"
        ),
    ],
)
def test_productive(books: list[str], seconds: float):
    assert productive([book(each) for each in books], until=50) == seconds


def test_incomplete_line_is_ignored():
    assert parse("1.5 start\n2.5 1\n3.") == [Line(at=1.5, step=None), Line(at=2.5, step=1)]
    assert parse("1.5 start\n2.5 1") == [Line(at=1.5, step=None)]
