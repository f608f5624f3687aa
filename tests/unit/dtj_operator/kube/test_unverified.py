"""How long a name is unverified."""

import pytest

from dtj_operator.kube.unverified import KEEP_S, UnverifiedNames
from dtj_operator.model.names import Key

KEY, OTHER = Key("a", "b"), Key("a", "c")


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_name_stays_until_it_is_discarded() -> None:
    unverified = UnverifiedNames()
    unverified.add(KEY, "b-0")
    unverified.add(KEY, "b-1")
    unverified.discard(KEY, "b-0")

    assert (unverified.of(KEY), unverified.of(OTHER)) == (("b-1",), ())


def test_name_stays_if_the_read_fails() -> None:
    unverified = UnverifiedNames()
    unverified.add(KEY, "b-0")
    with pytest.raises(OSError, match="down"), unverified.verifying(KEY, "b-0"):
        raise OSError("down")

    assert unverified.of(KEY) == ("b-0",)


def test_name_that_is_added_during_the_read_stays() -> None:
    unverified = UnverifiedNames()
    with unverified.verifying(KEY, "b-0"):
        unverified.add(KEY, "b-0")

    assert unverified.of(KEY) == ("b-0",)


def test_old_names_are_dropped() -> None:
    clock = Clock()
    unverified = UnverifiedNames(clock)
    unverified.add(KEY, "b-0")
    unverified.add(KEY, "b-1")
    clock.now = KEEP_S / 2
    unverified.add(KEY, "b-1")
    clock.now = KEEP_S + 1
    unverified.add(OTHER, "c-0")

    assert (unverified.of(KEY), unverified.of(OTHER)) == (("b-1",), ("c-0",))
