"""Which steps of a program that does not use dtj are counted, and when it shows that it is alive."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch.distributed.checkpoint import state_dict

from dtj.agent.rank.optimizer_steps import OptimizerSteps
from dtj.telemetry import heartbeat
from dtj.telemetry.heartbeat import SharedHeartbeat


class Steps:
    """Steps of optimizers as torch's hooks announce them."""

    def __init__(self) -> None:
        self._steps = OptimizerSteps()

    def make(self, optimizer: torch.optim.Optimizer, count: int = 1) -> None:
        for _ in range(count):
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    parameter.sum().backward()
            self._steps.before(optimizer)
            optimizer.step()
            self._steps.after(optimizer)


@pytest.fixture
def mine(monkeypatch: pytest.MonkeyPatch) -> SharedHeartbeat:
    """The heartbeat of this process."""
    monkeypatch.setattr(heartbeat, "mine", SharedHeartbeat())
    return heartbeat.mine


def optimizer() -> torch.optim.Optimizer:
    return torch.optim.Adam([torch.nn.Parameter(torch.ones(1))])


def test_only_the_steps_of_one_optimizer_are_counted_but_all_are_signs_of_life(mine: SharedHeartbeat) -> None:
    critic, generator, steps = optimizer(), optimizer(), Steps()
    for _ in range(4):
        steps.make(critic)
        steps.make(generator, 5)
    assert (mine.step, mine.signs) == (4, 24)


def test_count_continues_with_the_optimizer_of_the_next_model(mine: SharedHeartbeat) -> None:
    steps = Steps()
    first, second = optimizer(), optimizer()
    steps.make(first, 3)
    steps.make(second, 100)
    assert mine.step == 3  # the first one may still be used
    steps.make(second, 20)
    assert (mine.step, mine.busy_time[0]) == (23, 2 + 19)


def test_model_that_the_program_drops_is_freed_and_the_next_one_is_counted(mine: SharedHeartbeat) -> None:
    steps = Steps()
    first = optimizer()
    steps.make(first, 3)
    weight = weakref.ref(first.param_groups[0]["params"][0])
    del first
    gc.collect()
    assert weight() is None
    steps.make(optimizer(), 2)
    assert mine.step == 5


def test_count_of_a_resumed_optimizer_continues(mine: SharedHeartbeat) -> None:
    before, after = optimizer(), optimizer()
    Steps().make(before, 7)
    after.load_state_dict(before.state_dict())
    Steps().make(after)
    assert mine.step == 8


def test_count_continues_after_a_load_for_which_torch_itself_makes_a_step(mine: SharedHeartbeat) -> None:
    """`get_state_dict` and `set_state_dict` step a new optimizer, so that it has a state to be replaced."""
    models = [torch.nn.Linear(1, 1, bias=False) for _ in range(2)]
    before, after = [torch.optim.Adam(model.parameters()) for model in models]
    Steps().make(before, 7)
    saved = state_dict.get_optimizer_state_dict(models[0], before)
    steps = OptimizerSteps()
    after.register_step_pre_hook(steps.before)
    after.register_step_post_hook(steps.after)
    state_dict.set_optimizer_state_dict(models[1], after, saved)
    assert mine.signs == 7 + 1
    for count in (8, 9):
        models[1](torch.ones(1)).sum().backward()
        after.step()
        assert mine.step == count


def test_count_of_an_optimizer_that_does_not_count_its_steps(mine: SharedHeartbeat) -> None:
    Steps().make(torch.optim.SGD([torch.nn.Parameter(torch.ones(1))]), 4)
    assert mine.step == 4


@pytest.mark.parametrize(
    ("ranks", "rank", "has_group", "says"),
    [
        pytest.param("2", "0", False, True, id="each for itself"),
        pytest.param("2", "1", False, False, id="rank 0 says it for all"),
        pytest.param("2", "0", True, False, id="together"),
        pytest.param("1", "0", False, False, id="one rank"),
    ],
)
def test_ranks_that_train_a_model_each_get_one_warning(
    mine: SharedHeartbeat,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    ranks: str,
    rank: str,
    has_group: bool,
    says: bool,
) -> None:
    """As Lightning and Accelerate do on CPUs without further options."""
    monkeypatch.setenv("WORLD_SIZE", ranks)
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: has_group)
    steps, model = Steps(), optimizer()
    steps.make(model, 19)
    assert capsys.readouterr().err == ""
    steps.make(model, 40)
    said = capsys.readouterr().err.splitlines()
    first = "dtj: 20 optimizer steps and no process group: each of the 2 ranks trains for itself"
    assert said[:1] == [first] * says
    assert len(said) == 2 * says
