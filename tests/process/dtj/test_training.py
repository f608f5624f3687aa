"""What a new user runs first: the included recipes, and a recipe of their own."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.process.dtj.conftest import Finished

EXAMPLES = Path(__file__).parents[3] / "examples"
DIGITS = "dtj.recipes.digits:recipe"
EPOCH = 23  # its steps


def accuracies(ended: Finished) -> list[float]:
    """Held-out accuracy after each epoch, and at the end."""
    assert ended.code == 0, ended.err
    return [float(a) for a in re.findall(r"accuracy ([\d.]+)", ended.out + ended.err)]


def accuracy_at_steps(ended: Finished, *steps: int) -> list[float]:
    """Held-out accuracy as logged at these steps; on a slow machine later lines repeat it."""
    assert ended.code == 0, ended.err
    logged = dict(re.findall(r"step (\d+)/.*  accuracy ([\d.]+)", ended.out))
    return [float(logged[str(step)]) for step in steps]


def test_two_ranks_learn_digits(finish: Callable[..., Finished]) -> None:
    """Eight of its twenty epochs; an e2e test trains all."""
    assert accuracies(finish("train", "--nproc", 2, DIGITS, "epochs=8"))[-1] >= 0.96


def test_one_two_and_four_ranks_learn_the_same(finish: Callable[..., Finished]) -> None:
    """Rounding differs, so the result of one of the 360 held-out samples may differ."""
    alone, two, four = (
        accuracy_at_steps(finish("train", "--nproc", n, DIGITS, "epochs=2"), EPOCH, 2 * EPOCH)
        for n in (1, 2, 4)
    )
    assert two == pytest.approx(alone, abs=1.5 / 360)
    assert four == pytest.approx(alone, abs=1.5 / 360)


def test_own_recipe_is_trained_by_its_path(finish: Callable[..., Finished]) -> None:
    """With the command in the example's first line; the example must stay short."""
    file = EXAMPLES / "my_recipe.py"
    assert len(file.read_text().splitlines()) <= 30
    ended = finish("train", "--nproc", 2, f"{file}:recipe", "epochs=3", "lr=0.02")
    assert accuracies(ended)[-1] >= 0.8  # half of the points are inside


def test_text_recipe_trains_evaluates_and_prints_a_sample(finish: Callable[..., Finished]) -> None:
    """A very small version: the loss falls from 8 bits per byte."""
    small = ("kilobytes=30", "epochs=2", "layers=1", "width=32", "context=64", "global_batch=16")
    ended = finish("train", "--nproc", 2, "dtj.recipes.text:recipe", *small)
    assert ended.code == 0, ended.err
    bits = [float(x) for x in re.findall(r"bits_per_byte ([\d.]+)", ended.out + ended.err)]
    assert 1 < bits[-1] < bits[0] < 8
    assert re.search(r"\d tokens/s", ended.out)
    assert re.search(r"grad_norm \d", ended.out), "its gradients are clipped"
    assert "a sample:\n[rank 0] def forward(self, " in ended.err


STREAM = """
import torch
from torch import nn
from dtj import Recipe


class Endless:
    def __iter__(self):
        chance = torch.Generator().manual_seed(0)
        while True:
            yield torch.rand(3, generator=chance)


def recipe(steps: int | None = None, epochs: int | None = None) -> Recipe:
    return Recipe(
        model=lambda: nn.Linear(3, 1),
        data=Endless(),
        loss=lambda model, mb: model(mb).square().mean(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        global_batch=8,
        steps=steps,
        epochs=epochs,
        held_out=torch.ones(5, 3),
        score=lambda model, mb: model(mb)[:, 0],
        best="highest",
    )
"""


CLIPPED = """
import torch
from torch import nn
from dtj import Recipe


def recipe(clip: float | None = None) -> Recipe:
    return Recipe(
        model=lambda: nn.Linear(1, 1, bias=False),
        data=torch.ones(8, 1),
        loss=lambda model, mb: 4 * model(mb).mean(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=1.0),
        global_batch=4,
        epochs=1,
        clip=clip,
        held_out=torch.ones(8, 1),
        score=lambda model, mb: model(mb)[:, 0],
        metric="weight",
    )
"""


def test_recipe_with_clip_limits_the_update_and_logs_the_norm_before(
    finish: Callable[..., Finished], tmp_path: Path
) -> None:
    """Two steps with a gradient of 4 at a learning rate of 1."""
    (tmp_path / "mine.py").write_text(CLIPPED)
    weight = {}
    for clip in ("", "clip=0.5"):
        flags = ("train", "--nproc", 2, "--log-every", 1, f"{tmp_path / 'mine.py'}:recipe")
        ended = finish(*flags, *filter(None, [clip]))
        assert ended.code == 0, ended.err
        weight[clip] = float(re.findall(r"held-out weight (-?[\d.]+)", ended.err)[0])
        assert re.findall(r"grad_norm ([\d.]+)", ended.out) == (["4.0000", "4.0000"] if clip else [])
    assert abs(weight["clip=0.5"] - weight[""] - 2 * (4 - 0.5)) < 1e-3


def test_endless_stream_is_trained_for_a_number_of_steps_and_scored_after_the_last_one(
    finish: Callable[..., Finished], tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(STREAM)
    target = f"{tmp_path / 'mine.py'}:recipe"
    ended = finish("train", "--nproc", 2, "--workers", 1, target, "steps=6")
    assert ended.code == 0, ended.err
    assert re.search(r"step 6/6  epoch 0 .*accuracy", ended.out)
    ended = finish("train", "--nproc", 2, target, "epochs=1")
    assert ended.code == 78
    assert ended.err.count("the dataset is a stream without __len__") == 1
    assert "Recipe(steps=1000)" in ended.err
