"""Half precision, and losses that are not finite."""

import pytest
import torch
from torch import nn

from dtj.step.precision import Precision


def scaled(gradient: float, *, finite_everywhere: bool | None = None) -> tuple[Precision, nn.Parameter]:
    """fp16 after a backward whose scaled gradient is `gradient`; finite_everywhere: as all ranks agreed."""
    precision = Precision("fp16", torch.device("cpu"))
    weight = nn.Parameter(torch.ones(3))
    weight.grad = torch.full((3,), gradient)
    precision.unscale(
        [weight], all_finite=lambda mine: bool(mine) if finite_everywhere is None else finite_everywhere
    )
    return precision, weight


def test_gradients_are_divided_by_the_scale() -> None:
    precision, weight = scaled(65536.0)
    assert weight.grad is not None
    assert weight.grad.tolist() == [1, 1, 1]
    assert precision.scale == 65536


def test_gradients_are_divided_whatever_the_default_type() -> None:
    before = torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.float64)
        _, weight = scaled(65536.0)
    finally:
        torch.set_default_dtype(before)
    assert weight.grad is not None
    assert weight.grad.tolist() == [1, 1, 1]


def test_sparse_gradients_are_divided_once_for_each_row() -> None:
    precision, table = Precision("fp16", torch.device("cpu")), nn.Embedding(4, 1, sparse=True)
    torch.autograd.backward(table(torch.tensor([2, 2, 0])).sum() * precision.scale)
    precision.unscale(table.parameters(), all_finite=bool)
    assert table.weight.grad is not None
    assert table.weight.grad.to_dense().flatten().tolist() == [1, 0, 2, 0]


@pytest.mark.parametrize(
    ("gradient", "finite_everywhere"),
    [
        pytest.param(float("inf"), None, id="overflow on this rank"),
        pytest.param(float("nan"), None, id="NaN on this rank"),
        pytest.param(1.0, False, id="overflow on another rank"),
    ],
)
def test_overflow_skips_the_step_and_halves_the_scale(
    gradient: float, finite_everywhere: bool | None
) -> None:
    precision, weight = scaled(gradient, finite_everywhere=finite_everywhere)
    optimizer = torch.optim.AdamW([weight], lr=1.0)
    optimizer.step()
    assert weight.tolist() == [1, 1, 1]
    assert precision.scale == 32768


def test_rank_that_joins_between_two_passes_skips_the_step_after_an_overflow_too() -> None:
    weights = [nn.Parameter(torch.ones(3)) for _ in range(2)]
    ranks = [Precision("fp16", torch.device("cpu")) for _ in weights]
    for precision, weight in zip(ranks, weights, strict=True):
        precision.watch(torch.optim.SGD([weight], lr=1.0))
    weights[0].grad = torch.full((3,), float("inf"))
    ranks[0].unscale([weights[0]], all_finite=bool)
    ranks[1].load_state_dict(ranks[0].state_dict())
    for precision, weight in zip(ranks, weights, strict=True):
        weight.grad = torch.ones(3)  # of the second pass
        precision.drop_overflowed()
        assert weight.grad is None


def test_scale_grows_after_many_good_steps() -> None:
    precision = Precision("fp16", torch.device("cpu"))
    precision.load_state_dict({"scale": 8.0, "good_steps": 1998})
    for expected in (8, 16, 16):
        precision.unscale([], all_finite=bool)
        assert precision.scale == expected
