"""How long a name is in doubt."""

import pytest

from dtj_operator.kube.doubts import KEPT_S, Doubts
from dtj_operator.names import Key

KEY, OTHER = Key("a", "b"), Key("a", "c")


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_doubt_stays_until_it_is_settled() -> None:
    doubts = Doubts()
    doubts.add(KEY, "b-0")
    doubts.add(KEY, "b-1")
    doubts.settle(KEY, "b-0")

    assert (doubts.of(KEY), doubts.of(OTHER)) == (("b-1",), ())


def test_a_question_without_an_answer_settles_nothing() -> None:
    doubts = Doubts()
    doubts.add(KEY, "b-0")
    with pytest.raises(OSError, match="down"), doubts.settling(KEY, "b-0"):
        raise OSError("down")

    assert doubts.of(KEY) == ("b-0",)


def test_a_doubt_that_comes_up_while_it_is_asked_stays() -> None:
    doubts = Doubts()
    with doubts.settling(KEY, "b-0"):
        doubts.add(KEY, "b-0")

    assert doubts.of(KEY) == ("b-0",)


def test_old_ones_that_nobody_asks_about_are_forgotten() -> None:
    clock = Clock()
    doubts = Doubts(clock)
    doubts.add(KEY, "b-0")
    doubts.add(KEY, "b-1")
    clock.now = KEPT_S / 2
    doubts.add(KEY, "b-1")
    clock.now = KEPT_S + 1
    doubts.add(OTHER, "c-0")

    assert (doubts.of(KEY), doubts.of(OTHER)) == (("b-1",), ("c-0",))
