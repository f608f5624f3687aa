"""How long a name is unverified, and how many are remembered."""

import pytest

from dtj_operator.kube.unverified import MOST, UnverifiedNames
from dtj_operator.model.names import Key

KEY, OTHER = Key("a", "b"), Key("a", "c")


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


def test_names_of_the_oldest_job_are_dropped_because_a_follower_never_verifies_any() -> None:
    unverified = UnverifiedNames()
    unverified.add(OTHER, "c-0")
    unverified.add(KEY, "b-0")
    for number in range(MOST - 2):
        unverified.add(Key("many", str(number)), "x")
    unverified.add(OTHER, "c-1")
    assert (unverified.of(KEY), unverified.of(OTHER)) == (("b-0",), ("c-0", "c-1"))

    unverified.add(Key("many", "last"), "x")
    assert (unverified.of(KEY), unverified.of(OTHER)) == ((), ("c-0", "c-1"))
