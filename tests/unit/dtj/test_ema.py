"""The average of a model's weights in one process; sharded ones are in tests/process/dtj/test_loops.py."""

import copy

import pytest
import torch
from torch import nn

import dtj


class Line(nn.Module):
    """A trained weight, and a fixed one."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([1.0]))
        self.bias = nn.Parameter(torch.tensor([7.0]), requires_grad=False)


def trained() -> tuple[Line, dtj.EMA]:
    """A model whose weight goes 1, 2, 3 and is averaged with decay 0.5: 1, 1.5, 2.25."""
    model = Line()
    average = dtj.EMA(model, decay=0.5)
    for value in (2.0, 3.0):
        model.weight.data.fill_(value)
        average.update()
    return model, average


def test_averages_are_the_weights_in_the_context_only() -> None:
    model, average = trained()
    weight = model.weight
    with average.applied():
        assert weight.tolist() == [2.25]
    assert weight.tolist() == [3.0]
    assert model.weight is weight
    assert model.bias.tolist() == [7.0]
    assert average.state_dict().keys() == {"weight"}


def test_averages_are_restored() -> None:
    model, average = trained()
    state = copy.deepcopy(average.state_dict())
    average.update()
    average.load_state_dict(state)
    with average.applied():
        assert model.weight.tolist() == [2.25]
    torch.testing.assert_close(average.state_dict(), state)


def test_layer_that_is_unfrozen_later_is_averaged_from_then_on() -> None:
    """Also in a program that continues from the checkpoint, where the layer is frozen again at first."""
    model, average = trained()
    model.bias.requires_grad_(True)
    average.update()
    model.bias.data.fill_(9.0)
    average.update()
    with average.applied():
        assert model.bias.tolist() == [8.0]
    assert model.bias.tolist() == [9.0]

    later = Line()
    continued = dtj.EMA(later, decay=0.5)
    continued.load_state_dict(copy.deepcopy(average.state_dict()))
    with continued.applied():
        assert later.bias.tolist() == [8.0]


def test_average_that_a_checkpoint_lacks_is_missed() -> None:
    _, average = trained()
    with pytest.raises(KeyError, match="weight"):
        average.load_state_dict({"bias": torch.ones(1)})


@pytest.mark.parametrize("decay", [1.0, -0.1, float("nan")])
def test_decay_is_below_1(decay: float) -> None:
    with pytest.raises(dtj.RecipeError, match=r"dtj.EMA got decay="):
        dtj.EMA(nn.Linear(1, 1), decay=decay)
