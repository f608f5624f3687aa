"""What is remembered, and what is forgotten for it."""

from dtj_operator.engine.newest import Newest


def test_entry_that_was_set_first_is_forgotten() -> None:
    found = Newest[str, int](2)

    found.update(a=1, b=2, c=3)

    assert list(found.items()) == [("b", 2), ("c", 3)]


def test_entry_that_is_set_again_is_among_the_newest() -> None:
    found = Newest[str, int](2)

    found.update(a=1, b=2)
    found.update(a=4, c=3)

    assert list(found.items()) == [("a", 4), ("c", 3)]
