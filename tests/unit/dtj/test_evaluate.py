"""Evaluation: exact sums, modes of modules, and what a warm-up runs under; checks of weights."""

from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.overrides import TorchFunctionMode

from dtj.errors import DtjError, RecipeError
from dtj.parallel.layout import lay_out
from dtj.parallel.strategy import Strategy
from dtj.ranks import exchange
from dtj.ranks.world import World
from dtj.step.backward import backward, warm_up
from dtj.step.evaluate import evaluate
from dtj.step.finite import FiniteCheck
from dtj.step.precision import Precision
from tests.unit.dtj.feeds import feed

CPU = torch.device("cpu")


def single(*models: nn.Module) -> Strategy:
    strategy = Strategy(lay_out("none", "", World()), CPU)
    for model in models:
        strategy.add(model, is_healing=False)
    return strategy


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        pytest.param(torch.bfloat16, 1.0, id="bf16 cannot hold 257"),
        pytest.param(torch.float16, 512.0, id="fp16 overflows"),
    ],
)
def test_sum_of_scores_does_not_depend_on_their_type(dtype: torch.dtype, value: float) -> None:
    scored = evaluate(
        lambda mb: torch.full((len(mb),), value, dtype=dtype),
        feed(257, batch=257, once=True, shuffle=False),
        strategy=single(),
        precision=Precision("fp32", CPU),
        group=None,
    )
    assert scored == value


def test_score_may_be_on_another_device_of_the_rank() -> None:
    with pytest.raises(NotImplementedError, match="Cannot copy out of meta tensor"):  # it is copied, at least
        evaluate(
            lambda mb: torch.ones(len(mb), device="meta"),
            feed(4, batch=2, once=True),
            strategy=single(),
            precision=Precision("fp32", CPU),
            group=None,
        )


class AppleGPU(TorchFunctionMode):
    """The CPU as "mps", which has no float64."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        is_there = getattr(kwargs.get("device"), "type", None) == "mps" or func is torch.Tensor.sum
        if is_there and kwargs.get("dtype") is torch.float64:
            raise TypeError("Cannot convert a MPS Tensor to float64 dtype")
        if is_there and "device" in kwargs:
            kwargs["device"] = CPU
        return func(*args, **kwargs)


def test_evaluation_on_apple_silicon_needs_no_float64() -> None:
    strategy = single()
    strategy.device = torch.device("mps")
    with AppleGPU():
        scored = evaluate(
            lambda mb: mb.float(),
            feed(5, batch=2, once=True, shuffle=False),
            strategy=strategy,
            precision=Precision("fp32", CPU),
            group=None,
        )
    assert scored == 2


@pytest.fixture(scope="module")
def metric() -> Any:
    """A sum. Only the worker that runs its test imports torchmetrics, which takes seconds."""
    from torchmetrics import SumMetric

    return SumMetric()


def test_metric_of_one_process_is_that_of_its_samples_each_time(metric: Any) -> None:
    for _ in range(2):
        total = evaluate(
            lambda mb: mb,
            feed(5, batch=2, once=True, shuffle=False),
            metric,
            strategy=single(),
            precision=Precision("fp32", CPU),
            group=None,
        )
        assert total == 0 + 1 + 2 + 3 + 4


def test_ranks_that_split_one_model_count_once_in_a_metric(
    monkeypatch: pytest.MonkeyPatch, metric: Any
) -> None:
    """Of tp=2 x ddp=2, ranks 0 and 1 have the same samples; what rank 0 has, the others have, too."""
    layout = lay_out("tp+ddp", "tp=2", World(size=4, local_size=4))
    monkeypatch.setattr(exchange, "all_gather", lambda state, *, group: [state * n for n in (1, 1, 10, 10)])
    monkeypatch.setattr(exchange, "all_gather_numbers", lambda mine, *, group: [mine] * 4)
    total = evaluate(
        lambda mb: mb,
        feed(4, batch=4, once=True, shuffle=False),
        metric,
        strategy=Strategy(layout, CPU),
        precision=Precision("fp32", CPU),
        group=cast(dist.ProcessGroup, "the ranks"),
    )
    assert total == (0 + 1 + 2 + 3) * 11
    assert metric.dist_sync_fn is None


def test_ranks_that_evaluate_other_samples_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each would score a part of its part."""
    monkeypatch.setattr(exchange, "all_gather_numbers", lambda mine, *, group: [mine, [4, 7]])
    with pytest.raises(
        RecipeError, match=r"number of samples of run\.evaluate is 8 on rank 0 and 7 on rank 1"
    ):
        evaluate(
            lambda mb: mb,
            feed(8, batch=4, once=True),
            strategy=single(),
            precision=Precision("fp32", CPU),
            group=cast(dist.ProcessGroup, "the ranks"),
        )


def test_dataset_that_is_divided_among_the_ranks_already_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Equally: only a part of each part would be scored."""
    monkeypatch.setattr(
        exchange, "all_gather_numbers", lambda mine, *, group: [mine, mine if len(mine) > 1 else [5]]
    )
    said: list[str] = []
    with pytest.raises(IndexError):  # of the first score: the warning comes before it
        evaluate(
            lambda _: said[1],
            feed(8, batch=4, once=True),
            strategy=single(),
            precision=Precision("fp32", CPU),
            group=cast(dist.ProcessGroup, "the ranks"),
            warn=said.append,
        )
    assert "the dataset range has another first sample on each rank" in said[0]


def test_frozen_layer_stays_in_eval_mode() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Dropout())
    model[1].eval()
    with single(model).evaluating():
        assert not any(module.training for module in model.modules())
    assert [module.training for module in model.modules()] == [True, True, False, True]


def test_warm_up_runs_in_the_precision_of_a_step() -> None:
    model, types = nn.Linear(1, 1), []

    def loss(mb: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = model(mb.float()[:, None])
        types.append(out.dtype)
        return out.float().mean()

    strategy, precision, batch = single(model), Precision("bf16", CPU), feed(4).batch()
    warm_up(loss, batch, strategy=strategy, precision=precision)
    backward(loss, batch, strategy=strategy, precision=precision)
    assert types == [torch.bfloat16] * 2


def test_first_loss_that_is_not_finite_is_named_also_if_several_are_read_at_once() -> None:
    check = FiniteCheck(CPU)
    for step, loss in enumerate((1.0, float("inf"), 2.0, float("nan")), start=6):
        check.note(torch.tensor(loss), step)
    assert not check.has_seen_one()  # it starts the copy to the host, as on an accelerator
    assert check.has_seen_one()
    with pytest.raises(DtjError, match="the loss of step 7 is not finite"):
        check.check(None, saved=5, step=9)


def test_newest_checkpoint_is_the_one_that_rank_0_has_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another rank does not know if the last write failed."""
    monkeypatch.setattr(exchange, "all_gather_numbers", lambda mine, **_: [[7, True, 5], mine])
    check = FiniteCheck(CPU)
    with pytest.raises(DtjError, match=r"the loss of step 7 is not finite on rank 0; .* is of step 5"):
        check.check(None, saved=6, step=9)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_found(bad: float) -> None:
    model = nn.Linear(2, 2)
    check = FiniteCheck(CPU)
    check.note(torch.tensor(1.0), 7)
    model.weight.data[0, 0] = 1e30  # its square is infinite
    check.check(None, saved=5, step=7, weights=model.parameters())
    model.weight.data[0, 1] = bad
    with pytest.raises(
        DtjError, match=r"the weights after step 7 are not finite on every rank; .* is of step 5"
    ):
        check.check(None, saved=5, step=7, weights=model.parameters())


@pytest.mark.parametrize("kind", [torch.uint8, torch.float8_e4m3fn, torch.bfloat16])
def test_frozen_weights_may_be_of_any_type(kind: torch.dtype) -> None:
    """As of a quantized model whose corrections are trained."""
    model = nn.Linear(2, 2)
    model.base = nn.Parameter(torch.ones(4).to(kind), requires_grad=False)
    FiniteCheck(CPU).check(None, saved=5, step=7, weights=model.parameters())


def test_only_the_given_parameters_are_clipped() -> None:
    clipped, other = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)
    strategy = single(clipped, other)
    for model in (clipped, other):
        model.weight.grad = torch.full((1, 1), 4.0)
    norm = strategy.clip(1.0, list(clipped.parameters()))
    assert float(norm) == 4.0
    torch.testing.assert_close(clipped.weight.grad, torch.ones(1, 1))
    torch.testing.assert_close(other.weight.grad, torch.full((1, 1), 4.0))
