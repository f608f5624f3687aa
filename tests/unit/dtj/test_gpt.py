"""The language model and its data."""

import math
from functools import partial
from typing import Any, cast

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.functional import cross_entropy

from dtj.data import text
from dtj.errors import RecipeError
from dtj.models.gpt import GPT, GPT2_124M, Shape, generate
from dtj.recipes import digits
from dtj.recipes.text import _adamw, _write, gpt2, recipe, split

TINY = Shape(vocabulary=256, context=16, layers=2, heads=2, width=32)


@pytest.fixture
def model() -> GPT:
    torch.manual_seed(0)
    return GPT(TINY)


def test_gpt2_has_the_published_number_of_parameters() -> None:
    """124 million; the vocabulary is padded from 50,257 to 50,304 rows of 768."""
    with torch.device("meta"):
        found = sum(p.numel() for p in GPT(GPT2_124M).parameters())
    assert found == 124_439_808 + (50_304 - 50_257) * 768


def test_no_token_attends_to_later_tokens(model: GPT) -> None:
    tokens = torch.randint(0, 256, (1, 16))
    changed = tokens.clone()
    changed[0, 10:] = (changed[0, 10:] + 1) % 256
    before, after = model(tokens)[0], model(changed)[0]
    assert torch.equal(before[:10], after[:10])
    assert not torch.allclose(before[10], after[10])


def test_loss_of_an_untrained_model_is_that_of_guessing(model: GPT) -> None:
    tokens = torch.randint(0, 256, (64, 16))
    loss = cross_entropy(model(tokens).flatten(0, 1), torch.randint(0, 256, (64 * 16,)))
    assert abs(loss.item() - math.log(256)) < 0.1


def test_width_that_is_not_divisible_by_the_heads_is_rejected() -> None:
    with pytest.raises(
        RecipeError, match=r"width is 100, which is not divisible by the 3 heads\n.*width=102"
    ):
        Shape(vocabulary=256, context=16, layers=1, heads=3, width=100)


def test_generation_is_the_same_for_the_same_seed(model: GPT) -> None:
    prompt = torch.tensor([1, 2, 3])
    one, same, other = (
        generate(model, prompt, tokens=30, context=16, temperature=1.0, seed=seed) for seed in (1, 1, 2)
    )
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert one.shape == (33,)
    assert torch.equal(one[:3], prompt)


def test_sample_is_written_by_a_stage_whose_first_parameter_is_on_another_rank(model: GPT) -> None:
    stage = nn.Sequential(model)
    stage.register_parameter("of_another_stage", nn.Parameter(torch.empty(1, device="meta")))
    assert next(stage.parameters()).is_meta
    assert len(_write(stage, 3, context=16)) >= len("def forward(self, ")


def test_windows_predict_every_byte_once_except_the_first() -> None:
    windows = text.Windows(bytes(range(100)), context=9)
    pairs = [windows[index] for index in range(len(windows))]
    assert len(pairs) == 11
    assert torch.cat([x for x, _ in pairs]).tolist() == list(range(99))
    assert torch.cat([y for _, y in pairs]).tolist() == list(range(1, 100))
    with pytest.raises(IndexError):
        windows[11]


def test_text_shorter_than_a_window_is_rejected() -> None:
    with pytest.raises(RecipeError, match="the text has 9 bytes, fewer than one window of 9"):
        text.Windows(bytes(9), context=9)


@pytest.mark.parametrize(
    ("made_by", "wrong", "message"),
    [
        (recipe, {"width": 0}, "width is 0, expected a whole number of at least 1"),
        (recipe, {"width": -5}, "width is -5, expected"),
        (recipe, {"layers": 0}, "layers is 0, expected"),
        (recipe, {"context": 0}, "context is 0, expected"),
        (recipe, {"kilobytes": 0}, "the text has 0 bytes"),
        (recipe, {"lr": -1.0}, "lr is -1.0, expected a number above 0"),
        (gpt2, {"lr": math.nan, "kilobytes": 9}, "lr is nan, expected"),
        (digits.recipe, {"lr": math.inf}, "lr is inf, expected"),
        (digits.recipe, {"epochs": 0}, "epochs is 0, expected"),
        (lambda **size: digits.recipe(**size).model(), {"width": 0}, "width is 0, expected"),
        (partial(text.Windows, b"abc"), {"context": 0}, "context is 0, expected"),
    ],
)
def test_arguments_of_recipes_that_are_refused(made_by: Any, wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        made_by(**wrong)


def test_recipe_takes_any_width() -> None:
    """It has as many heads as divide it, at most one for 32 numbers."""
    shapes = [cast(GPT, recipe(width=width, kilobytes=60).model()).shape for width in (5, 96, 100, 127)]
    assert [shape.heads for shape in shapes] == [1, 3, 2, 1]


def test_package_that_is_not_installed_is_named() -> None:
    with pytest.raises(RecipeError, match="the package 'nothing_of_this_name' is not installed"):
        text.python_sources("nothing_of_this_name", limit=1000)


def test_files_are_whole_and_within_the_limit() -> None:
    files = text.python_sources("torch", limit=50_000)
    assert 10_000 < sum(map(len, files)) <= 50_000
    assert files == text.python_sources("torch", limit=50_000)


def test_training_and_held_out_files_are_different() -> None:
    train, held_out = split(context=64, limit=200_000)
    assert len(train) > 5 * len(held_out) > 0


def test_learning_rate_rises_over_a_twentieth_of_the_steps_and_falls_to_a_tenth() -> None:
    chosen = recipe(kilobytes=60, context=32, lr=0.5)
    optimizer = chosen.optimizer([torch.nn.Parameter(torch.zeros(1))])
    assert chosen.schedule
    schedule = chosen.schedule(optimizer, 100)
    rates = []
    for _ in range(100):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    assert rates[:5] == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5])
    assert rates[5:] == sorted(rates[5:], reverse=True)
    assert rates[-1] == pytest.approx(0.05, rel=0.01)


def test_model_learns_more_than_the_frequencies_of_bytes() -> None:
    """Its loss is below the entropy of single bytes, so it uses the context. Takes seconds on one thread."""
    chosen = recipe(kilobytes=300, context=32, layers=1, width=64)
    torch.manual_seed(0)
    model = chosen.model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    counts = torch.zeros(256)
    for index in range(len(chosen.data)):
        counts += torch.bincount(chosen.data[index][0], minlength=256)
    share = counts[counts > 0] / counts.sum()
    entropy = float(-(share * share.log()).sum())

    generator = torch.Generator().manual_seed(1)
    for _ in range(250):
        rows = torch.randint(0, len(chosen.data), (32,), generator=generator)
        x, y = (torch.stack(column) for column in zip(*(chosen.data[i] for i in rows.tolist()), strict=True))
        loss = cross_entropy(model(x).flatten(0, 1), y.flatten())
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()

    x, y = (torch.stack(column) for column in zip(*(chosen.held_out[i] for i in range(64)), strict=True))
    held_out = cross_entropy(model(x).flatten(0, 1), y.flatten())
    assert held_out.item() < 0.9 * entropy


@pytest.mark.parametrize(("kind", "fused"), [("cuda", True), ("cpu", None)])
def test_weights_on_a_gpu_are_updated_by_one_kernel(kind: str, fused: bool | None) -> None:
    with FakeTensorMode():
        optimizer = _adamw([nn.Parameter(torch.empty(2, 2, device=kind))], 1e-3)
    assert optimizer.defaults["fused"] is fused
