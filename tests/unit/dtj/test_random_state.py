"""Generators of a rank: the same draws at the same point of the program, different ones at any other."""

import random

import numpy as np
import torch

from dtj import random_state

CPU = torch.device("cpu")


def draw(base: int, step: int, verb: int, rank: int) -> tuple[float, float, float, float]:
    random_state.begin(base, step=step, verb=verb, stream=rank, device=CPU)
    return random.random(), np.random.random(), np.random.normal(), torch.rand(()).item()


def test_draws_do_not_depend_on_earlier_draws() -> None:
    first = draw(1, 5, 1, 0)
    np.random.normal()  # half a pair of normals is left
    draw(1, 6, 0, 0)
    assert draw(1, 5, 1, 0) == first


def test_each_step_verb_and_rank_draws_different_numbers() -> None:
    points = [
        (0, 0, 0, 0),
        (0, 0, 0, 1),
        (0, 0, 1, 0),
        (0, 1, 0, 0),
        (1, 0, 0, 0),
        (0, 11, 0, 0),
        (0, 1, 0, 10),
    ]
    assert len({draw(*point) for point in points}) == len(points)
