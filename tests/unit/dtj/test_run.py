"""Verbs of Run in one process: loaders of the user's own, and runs without data."""

import json
import math
import re
import signal
import sys
from collections.abc import Iterator
from itertools import count
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import dtj
from dtj import contract, loop
from dtj.agent.rank.optimizer_steps import OptimizerSteps
from dtj.checkpoint.checkpointer import _other_rates
from dtj.checkpoint.parts import Parts
from dtj.data.device_copy import DeviceCopy
from dtj.parallel.layout import Layout
from dtj.parallel.strategy import Strategy
from dtj.ranks import random_state, stop
from dtj.recipes import digits
from dtj.step.boundary import Boundary
from dtj.telemetry import heartbeat
from tests.support.checkpoints import names
from tests.unit.dtj.test_device_copy import Recorded


@pytest.fixture(autouse=True)
def restored(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """`dtj.init` installs handlers of signals and seeds the global generators."""
    monkeypatch.setattr("atexit.register", lambda *_: None)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    with torch.random.fork_rng():
        yield
    for number, handler in handlers.items():
        signal.signal(number, handler)
    heartbeat.mine.rest()


X = torch.randn(12, 3, generator=torch.Generator().manual_seed(1))
Y = X.sum(1, keepdim=True)


def train(run: dtj.Run, model: nn.Module, opt: Any, total: int) -> list[list[float]]:
    """Train on (x, y); the inputs of each step."""
    seen: list[list[float]] = []

    def loss_of(mb: dtj.Pair) -> torch.Tensor:
        seen[-1] += mb.x[:, 0].tolist()
        return nn.functional.mse_loss(model(mb.x), mb.y)

    for batch in run.steps(total):
        seen.append([])
        run.log(loss=run.backward(loss_of, batch))
        opt.step()
        opt.zero_grad()
    return seen


def test_own_loader_continues_from_a_checkpoint(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DTJ_CHECKPOINT_DIR", str(tmp_path))
    seen = []
    for total in (3, 5):
        run = dtj.init(device="cpu")
        loader = run.loader(DataLoader(TensorDataset(X, Y), batch_size=2, shuffle=True), accumulate=2)
        model = run.parallel(nn.Linear(3, 1))
        opt = torch.optim.SGD(model.parameters(), 0.1)
        run.state(model=model, opt=opt, data=loader)
        assert loader.steps_per_epoch == 3
        seen += train(run, model, opt, total)
    assert [len(step) for step in seen] == [4] * 5
    assert sorted(x for step in seen[:3] for x in step) == sorted(X[:, 0].tolist())
    assert len({x for step in seen[3:] for x in step}) == 8


@pytest.mark.parametrize("has_schedule", [False, True])
@pytest.mark.parametrize(
    ("rate", "line"),
    [
        (0.25, "opt continues with the learning rate of the checkpoint, 0.5; the program gives 0.25"),
        (0.5, ""),
    ],
)
def test_learning_rate_that_differs_from_that_of_the_checkpoint_is_said(
    tmp_path: Any,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    has_schedule: bool,
    rate: float,
    line: str,
) -> None:
    """It has no effect, since the optimizer's state has it. What a schedule made of it does not count."""
    monkeypatch.setenv("DTJ_CHECKPOINT_DIR", str(tmp_path))
    for total, lr in ((2, 0.5), (3, rate), (4, rate)):
        run = dtj.init(device="cpu")
        run.data(TensorDataset(X, Y), global_batch=4)
        model = run.parallel(nn.Linear(3, 1))
        opt = torch.optim.SGD(model.parameters(), lr)
        schedule = torch.optim.lr_scheduler.ExponentialLR(opt, 0.5)
        capfd.readouterr()
        run.state(model=model, opt=opt, **({"schedule": schedule} if has_schedule else {}))
        said = [text for text in capfd.readouterr().err.splitlines() if "learning rate" in text]
        assert said == ([f"dtj: {line}"] if line and total > 2 else [])
        train(run, model, opt, total)
        if has_schedule:
            schedule.step()


def test_optimizer_without_a_learning_rate_has_none_to_compare() -> None:
    """As transformers' Adafactor, which makes one of its own in each step."""
    opt = torch.optim.SGD([nn.Parameter(torch.ones(1))])
    opt.param_groups[0]["lr"] = None
    parts = Parts(Strategy(Layout(strategy="none", sizes={}, rank=0), torch.device("cpu")))
    parts.register({"opt": opt, "model": nn.Linear(1, 1)})
    assert parts.rates == {"opt": [None]}
    assert list(_other_rates({"opt": [0.1]}, parts.rates)) == []


def test_rate_that_the_program_sets_in_each_step_is_not_said_to_be_another(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DTJ_CHECKPOINT_DIR", str(tmp_path))
    for total in (2, 3):
        run = dtj.init(device="cpu")
        run.data(TensorDataset(X, Y), global_batch=4)
        model = run.parallel(nn.Linear(3, 1))
        opt = torch.optim.SGD(model.parameters(), 0.5)
        run.state(model=model, opt=opt)
        opt.param_groups[0]["lr"] = 0.1
        train(run, model, opt, total)
    assert "learning rate" not in capfd.readouterr().err


def parts_at(rate: float) -> Parts:
    opt = torch.optim.SGD([nn.Parameter(torch.ones(1))], rate)
    parts = Parts(Strategy(Layout(strategy="none", sizes={}, rank=0), torch.device("cpu")))
    parts.register({"opt": opt, "model": nn.Linear(1, 1)})
    return parts


def test_learning_rate_of_the_checkpoint_stays_the_one_to_compare_with() -> None:
    """Also at the second start with another one, until the program sets it after a restore."""
    saved = parts_at(0.5).state(1)
    for given in (0.25, 0.25, 0.5):
        parts = parts_at(given)
        parts.load(saved, None)
        parts.load_rates(saved["rates"])
        assert parts.rates == {"opt": [0.5]}
        saved = parts.state(1)
    saved["parts"]["opt"]["param_groups"][0]["lr"] = 0.25
    parts = parts_at(0.25)
    parts.load(saved, None)
    parts.load_rates(saved["rates"])
    assert parts.rates == {"opt": [0.25]}


def test_digits_that_are_trained_further_have_the_schedule_of_all_steps() -> None:
    """With CosineAnnealingLR the rate climbed again: its total is that of the checkpoint."""

    def scheduled(steps: int) -> tuple[torch.optim.Optimizer, Any]:
        optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.5)
        schedule: Any = digits.recipe().schedule
        return optimizer, schedule(optimizer, steps)

    def rates(optimizer: torch.optim.Optimizer, schedule: Any, steps: int) -> Iterator[float]:
        for _ in range(steps):
            yield optimizer.param_groups[0]["lr"]
            optimizer.step()
            schedule.step()

    first, whole = scheduled(4), scheduled(8)
    list(rates(*first, 4))
    continued = scheduled(8)
    for part, saved in zip(continued, first, strict=True):
        part.load_state_dict(saved.state_dict())
    expected = list(rates(*whole, 8))
    assert expected == sorted(expected, reverse=True)
    assert list(rates(*continued, 4)) == pytest.approx([0, *expected[5:]])  # the rate of one step is stored


def test_step_that_the_optimizer_counts_is_not_shown_in_place_of_the_own_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After a restart that optimizer may count from 1: the status would go back to step 1 for a while."""
    monkeypatch.setattr(heartbeat, "mine", heartbeat.SharedHeartbeat())
    counter, opt = OptimizerSteps(), torch.optim.SGD([nn.Parameter(torch.zeros(1))], 0.1)
    run = dtj.init(device="cpu")
    shown = []
    for _ in run.steps(2):
        counter.before(opt)
        counter.after(opt)
        shown.append(heartbeat.mine.step)
    assert shown == [None, 1]


def test_micro_batch_with_an_own_loader_is_refused() -> None:
    run = dtj.init(device="cpu", micro_batch=2)
    with pytest.raises(dtj.RecipeError, match=r"--micro-batch cannot divide the batches of run.loader"):
        run.loader(DataLoader(TensorDataset(X, Y), batch_size=2))


PROGRAM = """
import torch
import dtj

run = dtj.init(device="cpu", seed=0)
model = run.parallel(torch.nn.Linear(2, 1))
data = run.data(torch.utils.data.TensorDataset(torch.ones(4, 2)), global_batch=4)
run.state(model=model, data=data)
for batch in run.steps(1):
    loss = run.backward(lambda mb: model(mb[0]).mean(), batch)
    run.clip(1.0)
    run.log(loss=loss)
"""


@pytest.mark.parametrize(
    ("right", "wrong", "message"),
    [
        pytest.param("seed=0", "seed=-1", "seed is -1, expected a whole number of at least 0", id="seed"),
        pytest.param(
            "for batch", "run.state(data=data)\nfor batch", "run.state was called twice", id="state"
        ),
        pytest.param("clip(1.0)", "clip(0.0)", "run.clip got 0.0, expected a number above 0", id="clip"),
        pytest.param(
            "log(loss=loss)",
            "log(loss=loss.expand(2))",
            "loss of shape (2,), expected one",
            id="log a vector",
        ),
        pytest.param(
            "for batch", "run.log(a=1)\nfor batch", "run.log was called outside", id="log before steps"
        ),
        pytest.param(
            "for batch", "run.finish()\nfor batch", "run.finish was called before", id="finish before steps"
        ),
        pytest.param(
            "for batch in run.steps(1)",
            "for _ in run.steps(10**6):\n    run.finish()\nfor batch in run.steps(10**9)",
            "run.steps was called after run.finish",
            id="steps after finish",
        ),
        pytest.param(
            "steps(1)", "steps(-1)", "run.steps got -1, expected a whole number", id="negative steps"
        ),
        pytest.param("steps(1)", "steps(34.5)", "run.steps got 34.5, expected a whole", id="half a step"),
        pytest.param(
            "steps(1)", "steps(float('inf'))", "run.steps got inf, expected a whole", id="endless steps"
        ),
    ],
)
def test_verb_that_is_called_incorrectly_is_refused(right: str, wrong: str, message: str) -> None:
    assert PROGRAM.count(right) == 1
    with pytest.raises(dtj.RecipeError, match=re.escape(message)):
        exec(PROGRAM.replace(right, wrong), {})


@pytest.mark.parametrize(
    ("total", "shown"),
    [(np.int64(2), 2), (torch.tensor(2), 2), (sys.maxsize, 2**53)],
    ids=["NumPy", "torch", "no limit"],
)
def test_steps_may_be_any_whole_number(capsys: pytest.CaptureFixture[str], total: Any, shown: int) -> None:
    """Log lines and reports contain the total, so it must be a plain int."""
    run = dtj.init(device="cpu", log_every=1)
    for _ in run.steps(total):
        if run.step:
            run.finish()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[0] for line in lines[:2]] == [f"step 1/{shown}", f"step 2/{shown}"]
    assert ("eta" in lines[0]) == (shown == 2)


def test_score_may_be_a_tensor(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The checkpoint has it as a number: the tensor's device may not exist on the machine that loads it."""
    monkeypatch.setenv("DTJ_CHECKPOINT_DIR", str(tmp_path / "run"))
    exec(f"{PROGRAM}    run.keep_best(loss)\n", {})
    assert type(json.loads((tmp_path / "run" / "best.json").read_text())["score"]) is float


def test_best_checkpoint_is_kept_also_after_a_resume(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DTJ_CHECKPOINT_DIR", str(tmp_path))
    scores = [0.1, 0.5, 0.9, 0.2, 0.3, 0.4, 0.1, 0.8, 0.9]  # none of the last three is higher than the third
    for total in (6, 9):
        program = PROGRAM.replace("steps(1)", f"steps({total})") + "    run.keep_best(scores[run.step])\n"
        exec(program, {"scores": scores})
    assert names(tmp_path) == ["step-3", "step-6", "step-9"]


@pytest.mark.parametrize(
    ("right", "wrong", "message"),
    [
        ("Linear(2, 1)", "Linear(2, 3)", "model does not fit the checkpoint of step 1"),
        ("ones(4, 2)", "ones(5, 2)", "was made with a dataset of 4 samples; this one has 5"),
    ],
)
def test_checkpoint_of_another_program_is_refused(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, right: str, wrong: str, message: str
) -> None:
    monkeypatch.setenv("DTJ_CHECKPOINT_DIR", str(tmp_path))
    exec(PROGRAM, {})
    with pytest.raises(dtj.RecipeError, match=message):
        exec(PROGRAM.replace(right, wrong), {})


def test_run_that_was_resumed_and_trained_is_not_treated_as_finished(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DTJ_CHECKPOINT_DIR", str(tmp_path))
    for total, complaints in ((2, 0), (4, 0), (4, 2)):
        run = dtj.init(device="cpu")
        model = run.parallel(nn.Linear(3, 1))
        run.state(model=model, data=run.data(TensorDataset(X, Y), global_batch=4))
        for _ in range(2):
            train(run, model, torch.optim.SGD(model.parameters(), 0.1), total)
        assert capfd.readouterr().err.count("nothing left to train") == complaints


@pytest.mark.parametrize(("micro_batch", "sizes"), [(None, [2, 2]), (1, [1, 1, 1, 1])])
def test_evaluation_has_as_many_samples_at_a_time_as_training(
    micro_batch: int | None, sizes: list[int]
) -> None:
    found: list[int] = []

    def score(mb: dtj.Pair) -> Any:
        found.append(len(mb.x))
        return mb.x[:, 0]

    run = dtj.init(device="cpu", micro_batch=micro_batch)
    run.data(TensorDataset(X, Y), global_batch=2)
    run.evaluate(score, TensorDataset(X[:4], Y[:4]))
    assert found == sizes


def test_data_is_set_once() -> None:
    run = dtj.init(device="cpu")
    run.loader(DataLoader(TensorDataset(X, Y), batch_size=2))
    with pytest.raises(dtj.RecipeError, match="the data was set twice"):
        run.data(TensorDataset(X, Y), global_batch=4)


def test_steps_without_data(capsys: pytest.CaptureFixture[str]) -> None:
    run = dtj.init(device="cpu", log_every=1)
    for batch in run.steps(2):
        assert (batch.samples, list(batch)) == (0, [])
        run.log(reward=1.0)
    assert run.step == 2
    out = capsys.readouterr().out
    assert "step 2/2  epoch 0  reward 1.0000" in out
    assert "samples/s" not in out


def test_reinforcement_learning_has_steps_without_data() -> None:
    run = dtj.init(device="cpu")
    model = run.parallel(nn.Linear(1, 1, bias=False))
    for _ in run.steps(2):
        model.weight.grad = None
        loss = run.backward((model.weight * 3.0).sum(), count=5)
        torch.testing.assert_close(model.weight.grad, torch.full((1, 1), 3.0))
        assert float(loss) == pytest.approx(3 * float(model.weight.detach()))


def test_function_without_data_is_refused() -> None:
    run = dtj.init(device="cpu")
    for batch in run.steps(1):
        with pytest.raises(dtj.RecipeError, match="got a function, but no batch with samples"):
            run.backward(lambda mb: mb.mean(), batch)


@pytest.mark.parametrize("step_s", [0.01, 15.0])
def test_stop_takes_effect_after_the_present_step_if_steps_are_long(
    step_s: float, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setenv("DTJ_CHECKPOINT_DIR", str(tmp_path))
    run = dtj.init(device="cpu", save_every=1000)
    run.state(model=run.parallel(nn.Linear(1, 1)))
    clock = count()
    monkeypatch.setattr("dtj.step.boundary.time.monotonic", lambda: step_s * next(clock))
    with pytest.raises(dtj.Stopped):  # noqa: PT012
        for _ in run.steps(1000):
            if run.step == 5:
                signal.raise_signal(signal.SIGTERM)
    assert (run.step == 6) == (step_s > 1)
    assert (tmp_path / f"step-{run.step}").is_dir()
    assert stop.left == contract.EXIT_STOPPED
    for _ in run.steps(run.step + 1):
        pass
    assert stop.left is None, "it is done after all"


def test_signal_after_the_loop_ends_the_process_as_before() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    run = dtj.init(device="cpu")
    for _ in run.steps(1):
        assert signal.getsignal(signal.SIGTERM) != before[0]
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            nn.Linear(1, 1).to(torch.bfloat16),
            "weight is bfloat16, in which most of an optimizer's small updates",
        ),
        (torch.compile(nn.Linear(1, 1)), "run.parallel got the result of torch.compile"),
        ({"a": nn.Linear(1, 1)}, "run.parallel got a dict, expected a module or a function that builds one"),
        (lambda: None, "run.parallel got a NoneType, expected a module"),
    ],
)
def test_model_that_would_be_trained_or_saved_wrongly_is_refused(model: nn.Module, message: str) -> None:
    with pytest.raises(dtj.RecipeError, match=message):
        dtj.init(device="cpu").parallel(model)


def test_device_and_seed_may_be_of_torch_and_numpy() -> None:
    run = dtj.init(device=torch.device("cpu"), seed=np.int64(3))  # type: ignore[arg-type]
    assert (run.device.type, run.rank) == ("cpu", 0)


@pytest.mark.parametrize("value", [np.ones(2), 10**400, "1", None])
def test_value_that_is_not_a_number_is_refused_when_it_is_logged(value: Any) -> None:
    run = dtj.init(device="cpu")
    for _ in run.steps(1):
        with pytest.raises(dtj.RecipeError, match=r"run.log got loss=.*, expected a number"):
            run.log(loss=value)


def test_frozen_weights_may_be_half_precision() -> None:
    model = nn.Sequential(
        nn.Linear(1, 1).to(torch.bfloat16).requires_grad_(requires_grad=False), nn.Linear(1, 1)
    )
    assert dtj.init(device="cpu").parallel(model) is model


@pytest.mark.parametrize("batch", [6, 4])
def test_epochs_do_not_change_with_the_global_batch(batch: int) -> None:
    """Steps per epoch would, which a program may ask for before or after it restores the state."""
    state = dtj.init(device="cpu").data(TensorDataset(X), global_batch=6).state_dict()
    run = dtj.init(device="cpu")
    data = run.data(TensorDataset(X), global_batch=batch)
    data.load_state_dict(state)
    next(run.steps(12 // batch))  # the program counts in steps
    total = 2 * data.steps_per_epoch
    next(run.steps(total + 1))
    if batch == 6:
        next(run.steps(total))
    else:
        with pytest.raises(dtj.RecipeError, match="made with a global_batch of 6, this run has 4"):
            next(run.steps(total))


def test_any_setting_can_be_given_in_code_and_flags_win(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setenv("DTJ_SAVE_EVERY", "5")
    run = dtj.init(
        device="cpu", precision="bf16", checkpoint=tmp_path, recompute=True, save_every=7, metrics=["m.csv"]
    )
    found = run._settings
    assert (found.precision, found.checkpoint_dir, found.recompute) == ("bf16", str(tmp_path), True)
    assert (found.save_every, found.metrics) == (5, ("m.csv",))
    with run.autocast():
        assert torch.is_autocast_enabled("cpu")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"precison": "bf16"}, "dtj.init got precison, which is not a setting\n.*, parallel, "),
        ({"precision": "bf8"}, r"dtj.init\(precision=...\) is 'bf8': 'bf8' is not one of 'fp32'"),
        ({"micro_batch": 0}, r"dtj.init\(micro_batch=...\) is '0': 0 is not in the range x>=1"),
    ],
)
def test_setting_that_cannot_be_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(dtj.RecipeError, match=message):
        dtj.init(device="cpu", **settings)


def test_default_device_that_is_not_host_memory_is_refused() -> None:
    with torch.device("meta"), pytest.raises(dtj.RecipeError, match=r"set_default_device\('meta'\) is in"):
        dtj.init(device="cpu")


def test_reduce_and_unwrap() -> None:
    run = dtj.init(device="cpu")
    model = nn.Linear(1, 1)
    assert run.unwrap(run.parallel(model)) is model
    assert run.unwrap(torch.compile(model)) is model  # type: ignore[arg-type]  # its stub is wrong
    assert run.reduce(3).item() == 3.0
    assert run.reduce(torch.tensor([1, 2]), "max").tolist() == [1, 2]
    assert run.reduce(torch.tensor(True), "sum").dtype == torch.int64
    with pytest.raises(dtj.RecipeError, match=r"run.reduce got 'median'"):
        run.reduce(1.0, "median")


def test_callback_gets_the_values_of_each_line() -> None:
    run = dtj.init(device="cpu", log_every=2)
    lines: list[tuple[int, dict[str, float]]] = []
    run.on_line(lambda step, values: lines.append((step, values)))
    for _ in run.steps(4):
        run.log(loss=run.step, ratio=math.nan)
    assert [step for step, _ in lines] == [1, 2, 4]
    assert [values["loss"] for _, values in lines] == [0.0, 1.0, 3.0]
    assert all("ratio" not in values for _, values in lines)


def test_recipe_is_evaluated_once_after_each_epoch() -> None:
    calls = []

    def score(model: nn.Module, mb: dtj.Pair) -> torch.Tensor:
        calls.append(len(mb.x))
        found: torch.Tensor = -(model(mb.x) - mb.y).square().flatten()
        return found

    loop.train(
        dtj.Recipe(
            model=lambda: nn.Linear(3, 1),
            data=TensorDataset(X, Y),
            loss=lambda model, mb: nn.functional.mse_loss(model(mb.x), mb.y),
            optimizer=lambda parameters: torch.optim.SGD(parameters, 0.1),
            global_batch=4,
            epochs=2,
            held_out=TensorDataset(X, Y),
            score=score,
        )
    )
    assert sum(calls) == 2 * len(X)


def test_one_rank_seeds_its_generators_once_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only with other ranks, which may repeat or skip a backward pass, does it have a seed of its own."""
    run = dtj.init(device="cpu")
    model = run.parallel(nn.Linear(3, 1))
    run.data(TensorDataset(X, Y), global_batch=4)
    seeded: list[int] = []
    begin = random_state.begin

    def counted(base: int, **point: Any) -> None:
        seeded.append(point["verb"])
        begin(base, **point)

    monkeypatch.setattr(random_state, "begin", counted)
    train(run, model, torch.optim.SGD(model.parameters(), 0.1), 3)
    assert seeded == [0, 0, 0]


def test_steps_look_ahead_once_a_step_is_queued_and_never_beyond_the_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The device computes step n while its rank loads batch n + 1, then waits, e.g. for values to log."""
    found: list[str] = []
    after_step = Boundary.after_step

    def noted(boundary: Boundary, *how: Any) -> None:
        found.append("after the step")
        after_step(boundary, *how)

    monkeypatch.setattr(DeviceCopy, "overlaps", property(lambda _: True))
    monkeypatch.setattr(Boundary, "after_step", noted)
    run = dtj.init(device="cpu")
    data = run.data(Recorded(found), global_batch=5, shuffle=False)
    for batch in run.steps(3):
        found.append(f"step on {next(iter(batch)).tolist()}, at {data.state_dict()['position']}")
    first, second = [f"load {n}" for n in range(5)], [f"load {n}" for n in range(5, 10)]
    assert found == [
        *(*first, "step on [0, 1, 2, 3, 4], at 0", *second, "after the step"),
        *("step on [5, 6, 7, 8, 9], at 5", *first, "after the step"),
        *("step on [0, 1, 2, 3, 4], at 10", "after the step"),
    ]


def test_state_of_an_optimizer_has_the_order_of_the_model(capfd: pytest.CaptureFixture[str]) -> None:
    run = dtj.init(device="cpu")
    model = run.parallel(nn.Linear(3, 1))
    weight, bias = model.parameters()
    opt = torch.optim.SGD([bias, weight])
    run.state(model=model, opt=opt)
    assert opt.param_groups[0]["params"][0] is weight
    assert "no checkpoint folder" in capfd.readouterr().err
