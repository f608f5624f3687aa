"""Generators of a step: captured and restored to the bit, whether anything was drawn before or not."""

import random
from collections.abc import Callable

import numpy as np
import pytest
import torch

from dtj import random_state

CPU = torch.device("cpu")


def draw() -> tuple[float, float, float, float]:
    return random.random(), np.random.random(), np.random.normal(), torch.rand(()).item()


@pytest.mark.parametrize(
    "used",
    [
        pytest.param(lambda: None, id="nothing drawn yet"),
        pytest.param(np.random.random, id="NumPy used"),
        pytest.param(np.random.normal, id="NumPy has half a pair of normals left"),
        pytest.param(lambda: random_state.seed(7), id="seeded by the program"),
    ],
)
def test_restored_generators_draw_the_same(used: Callable[[], object]) -> None:
    random_state.begin_step(1, 5, 0, CPU)
    used()
    state = random_state.capture(CPU)
    first = draw()
    draw()
    random_state.restore(state, CPU)
    assert draw() == first


def test_each_step_and_rank_has_numbers_of_its_own() -> None:
    seen = set()
    for base, step, rank in [(0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0), (0, 11, 0), (0, 1, 10)]:
        random_state.begin_step(base, step, rank, CPU)
        seen.add(draw())
    assert len(seen) == 6
