"""Generators of a rank: the same draws at the same point of the program, different ones at any other."""

import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from dtj.ranks import random_state

CPU = torch.device("cpu")


def draw(base: int, step: int, verb: int, rank: int) -> tuple[float, float, float, float]:
    random_state.begin(base, step=step, verb=verb, stream=rank, devices=[CPU])
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


def test_generators_of_all_devices_of_a_rank_are_seeded(monkeypatch: pytest.MonkeyPatch) -> None:
    seeded: list[int] = []
    fake = SimpleNamespace(manual_seed=None, manual_seed_all=seeded.append)
    monkeypatch.setattr(torch, "get_device_module", lambda _: fake)
    devices = [torch.device("cuda", index) for index in range(2)]
    random_state.begin(0, step=1, verb=1, stream=0, devices=devices)
    assert len(seeded) == 1


@pytest.mark.parametrize("is_there", [True, False])
def test_torch_is_asked_to_seed_devices_only_if_there_are_any(
    monkeypatch: pytest.MonkeyPatch, is_there: bool
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: is_there)
    monkeypatch.setattr(torch, "manual_seed", asked.append)
    random_state.seed(7)
    assert asked == [7] * is_there
    assert torch.initial_seed() == 7
