"""How long a name is in doubt."""

import pytest

from dtj_operator.kube.unverified import KEEP_S, UnverifiedNames
from dtj_operator.names import Key

KEY, OTHER = Key("a", "b"), Key("a", "c")


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_doubt_stays_until_it_is_settled() -> None:
    unverified = UnverifiedNames()
    unverified.add(KEY, "b-0")
    unverified.add(KEY, "b-1")
    unverified.discard(KEY, "b-0")

    assert (unverified.of(KEY), unverified.of(OTHER)) == (("b-1",), ())


def test_a_question_without_an_answer_settles_nothing() -> None:
    unverified = UnverifiedNames()
    unverified.add(KEY, "b-0")
    with pytest.raises(OSError, match="down"), unverified.verifying(KEY, "b-0"):
        raise OSError("down")

    assert unverified.of(KEY) == ("b-0",)


def test_a_doubt_that_comes_up_while_it_is_asked_stays() -> None:
    unverified = UnverifiedNames()
    with unverified.verifying(KEY, "b-0"):
        unverified.add(KEY, "b-0")

    assert unverified.of(KEY) == ("b-0",)


def test_old_ones_that_nobody_asks_about_are_forgotten() -> None:
    clock = Clock()
    unverified = UnverifiedNames(clock)
    unverified.add(KEY, "b-0")
    unverified.add(KEY, "b-1")
    clock.now = KEEP_S / 2
    unverified.add(KEY, "b-1")
    clock.now = KEEP_S + 1
    unverified.add(OTHER, "c-0")

    assert (unverified.of(KEY), unverified.of(OTHER)) == (("b-1",), ("c-0",))
