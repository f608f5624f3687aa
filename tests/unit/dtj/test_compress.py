"""What a hook did not send is added to the next gradient, but only if an optimizer used the gradient."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from dtj.data.feed import Batch
from dtj.data.splitter import MicroBatch
from dtj.errors import RecipeError
from dtj.parallel import compress
from dtj.parallel.ddp import DataParallel
from dtj.parallel.layout import lay_out
from dtj.ranks.world import World
from dtj.step.backward import Rollback, Weighting
from dtj.step.precision import Precision

CPU = torch.device("cpu")


class FirstElement(compress.WithFeedback):
    """Sends the first element of each gradient; `fails` as if another rank was lost."""

    fails = False

    def exchange(
        self, parameters: list[nn.Parameter], gradients: list[torch.Tensor], left: list[torch.Tensor]
    ) -> None:
        if self.fails:
            raise RuntimeError("Connection closed by peer")
        for gradient, rest in zip(gradients, left, strict=True):
            gradient[1:] = 0
            rest[0] = 0


class Trained:
    """A parameter of two elements, and an optimizer; each pass has the gradient (1, 1)."""

    def __init__(self) -> None:
        self.hook = FirstElement()
        self.strategy = DataParallel(lay_out("ddp", "", World(size=2)), CPU, hook=self.hook)
        self.weight = nn.Parameter(torch.zeros(2))
        self.strategy.parameters = [self.weight]
        self.opt = torch.optim.SGD([self.weight])

    def passes(self) -> list[float]:
        """The gradient that an exchange of DDP has given, without what it had before."""
        earlier = torch.zeros(2) if self.weight.grad is None else self.weight.grad
        self.strategy.begin_backward()
        flat = earlier + torch.ones(2)
        bucket: Any = SimpleNamespace(
            parameters=lambda: [self.weight], gradients=lambda: [flat], buffer=lambda: flat
        )
        self.hook.average(None, bucket)
        self.weight.grad = flat
        return flat.tolist()

    def steps(self) -> None:
        self.opt.step()
        self.opt.zero_grad()

    @property
    def left(self) -> list[float]:
        return self.hook._left[self.weight].tolist()


def test_rest_of_a_gradient_that_was_used_is_added_to_the_next_one() -> None:
    trained = Trained()
    for number in range(1, 4):
        assert trained.passes() == [1, 0]
        trained.steps()
        assert trained.left == [0, number]


@pytest.mark.parametrize(
    "discard",
    [
        pytest.param(lambda opt: opt.zero_grad(), id="set to None"),
        pytest.param(lambda opt: opt.zero_grad(set_to_none=False), id="set to zero"),
    ],
)
def test_rest_of_a_gradient_that_was_discarded_is_discarded(
    discard: Callable[[torch.optim.Optimizer], None],
) -> None:
    """As that of the critic in the pass of a GAN's generator."""
    trained = Trained()
    trained.passes()
    trained.steps()
    for _ in range(2):
        trained.passes()
        discard(trained.opt)
    trained.passes()
    trained.steps()
    assert trained.left == [0, 2]


def test_rests_of_all_passes_before_a_step_are_kept() -> None:
    trained = Trained()
    trained.passes()
    assert trained.passes() == [2, 0]
    trained.steps()
    assert trained.left == [0, 2]


@pytest.mark.parametrize("earlier", [0, 1])
@pytest.mark.parametrize("is_sent", [True, False])
def test_pass_that_is_repeated_counts_once(earlier: int, is_sent: bool) -> None:
    """After the loss of a rank, before or after the exchange of this bucket."""
    trained = Trained()
    for _ in range(earlier):
        trained.passes()
    before = Rollback(trained.strategy)
    trained.hook.fails = not is_sent
    try:
        trained.passes()
    except RuntimeError:
        assert not is_sent
    before.restore()
    trained.hook.fails = False
    trained.passes()
    trained.steps()
    assert trained.left == [0, earlier + 1]


def test_step_that_leaves_a_parameter_out_does_not_use_its_rest() -> None:
    """As with find_unused_parameters: DDP sends a part of the rest, and gives it to no optimizer."""
    trained = Trained()
    trained.passes()
    trained.steps()
    trained.passes()
    trained.weight.grad = None
    trained.opt.step()
    assert trained.left == [0, 1]


def test_losses_with_a_count_are_refused() -> None:
    """The rest of a gradient would get the count of the next one."""
    part = MicroBatch(0, np.arange(2), 1.0)
    batch = Batch(samples=2, epoch=0, ends_epoch=False, micro_batches=[part], fetch=lambda _: None)
    weights = Weighting(batch, strategy=Trained().strategy, precision=Precision("fp32", CPU))
    weights.weighted(torch.ones(()), None, part)
    with pytest.raises(RecipeError, match=r"a loss came with a count, .*powersgd and topk"):
        weights.weighted(torch.ones(()), 3, part)
