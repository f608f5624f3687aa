"""The first thing a new user runs."""

import re
from collections.abc import Callable

from tests.unit.dtj.conftest import Finished

DIGITS = "dtj.recipes.digits:recipe"


def accuracies(ended: Finished) -> list[float]:
    """After each epoch, and at the end."""
    assert ended.code == 0, ended.err
    return [float(a) for a in re.findall(r"accuracy ([\d.]+)", ended.out + ended.err)]


def test_two_ranks_learn_to_read_digits(finish: Callable[..., Finished]) -> None:
    assert accuracies(finish("train", "--nproc", 2, DIGITS))[-1] >= 0.97


def test_one_two_and_four_ranks_learn_the_same(finish: Callable[..., Finished]) -> None:
    """Rounding differs, so one of the 360 held-out samples may."""
    alone, two, four = (accuracies(finish("train", "--nproc", n, DIGITS, "epochs=2")) for n in (1, 2, 4))
    assert len(alone) == 3
    for together in (two, four):
        assert all(abs(a - b) < 1.5 / 360 for a, b in zip(alone, together, strict=True))


def test_help_of_a_recipe_is_its_signature(finish: Callable[..., Finished]) -> None:
    ended = finish("train", DIGITS, "--help")
    assert ended.code == 0
    assert ended.out.startswith(f"Usage: dtj train {DIGITS} [key=value ...]")
    assert "  epochs        int    default 20\n" in ended.out
