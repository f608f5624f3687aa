"""Gradients are the mean over what the losses are means over: samples, or a count such as tokens."""

import contextlib
import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.functional import cross_entropy
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import TensorDataset

from dtj.data.feed import Batch
from dtj.data.splitter import MicroBatch
from dtj.errors import RecipeError
from dtj.parallel.layout import lay_out
from dtj.parallel.local_sgd import LocalSGD
from dtj.parallel.stale import Stale
from dtj.parallel.strategy import Strategy
from dtj.ranks.world import World
from dtj.step.backward import Moving, PlainForm, Rollback, Weighting, backward, warm_up
from dtj.step.precision import Precision
from tests.unit.dtj.feeds import feed
from tests.unit.dtj.test_evaluate import single

CPU = torch.device("cpu")
VOCABULARY, PADDING = 11, -100
LENGTHS = (7, 1, 4, 0, 2, 6, 3, 5)  # of the texts; one has no token to learn
TEXTS = [torch.randint(VOCABULARY, (n + 1,), generator=torch.Generator().manual_seed(n)) for n in LENGTHS]


def padded(texts: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    """Inputs and labels of a micro-batch, padded to its longest text."""
    rows = nn.utils.rnn.pad_sequence(texts, batch_first=True, padding_value=PADDING)
    return {"inputs": rows[:, :-1].clamp(min=0), "labels": rows[:, 1:]}


def loss_and_tokens(model: nn.Module, mb: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    scores = model(mb["inputs"]).flatten(0, 1)
    return cross_entropy(scores, mb["labels"].flatten(), ignore_index=PADDING), (mb["labels"] >= 0).sum()


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(VOCABULARY, 4), nn.Linear(4, VOCABULARY))


def gradients(model: nn.Module) -> list[torch.Tensor]:
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def reference() -> tuple[float, list[torch.Tensor]]:
    """The mean over all tokens, without micro-batches."""
    model = network()
    total = torch.zeros(())
    for text in TEXTS:
        total = total + cross_entropy(model(text[:-1]), text[1:], reduction="sum")
    mean = total / sum(LENGTHS)
    mean.backward()  # type: ignore[no-untyped-call]
    return float(mean.detach()), gradients(model)


def plain(strategy: Strategy, precision: Precision) -> PlainForm:
    return PlainForm(strategy, precision, begins=lambda: None, counting=lambda _: contextlib.nullcontext())


def in_closure(model: nn.Module, batch: Batch, strategy: Strategy, precision: Precision) -> torch.Tensor:
    return backward(lambda mb: loss_and_tokens(model, mb), batch, strategy=strategy, precision=precision)


def in_loop(model: nn.Module, batch: Batch, strategy: Strategy, precision: Precision) -> torch.Tensor:
    form, total = plain(strategy, precision), torch.zeros(())
    for mb in form.over(batch):
        loss, tokens = loss_and_tokens(model, mb)
        total = form.backward(loss, tokens, None)
    return total


def test_loss_with_a_dimension_is_one_number_afterwards() -> None:
    """On an accelerator the check for finite losses takes no other shape."""
    model = nn.Linear(1, 1)
    batch, precision = feed(data=TensorDataset(torch.ones(4, 1)), batch=4).batch(), Precision("fp32", CPU)
    found = backward(lambda mb: model(mb[0]).mean(0), batch, strategy=single(model), precision=precision)
    assert found.shape == ()


@pytest.mark.parametrize("form", [in_closure, in_loop])
@pytest.mark.parametrize("micro", [None, 1, 3])
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_padded_texts_have_the_gradients_of_the_mean_over_tokens(
    form: Any, micro: int | None, precision: str
) -> None:
    expected, wanted = reference()
    model = network()
    batch = feed(data=TEXTS, batch=len(TEXTS), micro=micro, collate=padded).batch()
    loss = form(model, batch, single(model), Precision(precision, CPU))
    rtol, atol = (1e-5, 1e-6) if precision == "fp32" else (2e-2, 2e-3)
    assert float(loss) == pytest.approx(expected, rel=rtol)
    torch.testing.assert_close(gradients(model), wanted, rtol=rtol, atol=atol)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_local_step_takes_the_mean_over_its_own_tokens_and_waits_for_no_rank(
    precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("it waits for the other ranks")

    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "all_reduce", refuse)
    expected, wanted = reference()
    model = network()
    strategy = LocalSGD(lay_out("ddp", "", World(size=2)), CPU, every=9)
    strategy.parameters = list(model.parameters())
    strategy.start(0, 9)
    batch = feed(data=TEXTS, batch=len(TEXTS), micro=3, collate=padded).batch()
    chosen = Precision(precision, CPU)
    chosen.scale = min(chosen.scale, 2.0**10)  # the first one overflows
    loss = in_closure(model, batch, strategy, chosen)
    rtol, atol = (1e-5, 1e-6) if precision == "fp32" else (2e-2, 2e-3)
    assert float(loss) == pytest.approx(expected, rel=rtol)
    torch.testing.assert_close(gradients(model), wanted, rtol=rtol, atol=atol)


def test_stale_gradients_are_the_mean_over_the_tokens_of_all_ranks_at_that_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The number of tokens is sent with the gradients, so that no step waits for it."""
    sent: list[torch.Tensor] = []

    def send(vector: torch.Tensor, *, async_op: bool) -> None:
        assert async_op
        sent.append(vector.clone())

    monkeypatch.setattr(dist, "all_reduce", send)
    model = network()

    def strategy() -> Stale:
        made = Stale(lay_out("ddp", "", World(size=2)), CPU, delay=1)
        made.parameters = made.weights = list(model.parameters())
        return made

    halves = [feed(data=half, batch=len(half), collate=padded).batch() for half in (TEXTS[:3], TEXTS[3:])]
    for half in halves:
        in_closure(model, half, strategy(), Precision("fp32", CPU))
    later = strategy()
    later.load_state_dict({"sums": [sent[0] + sent[1]]})
    in_closure(model, halves[0], later, Precision("fp32", CPU))
    torch.testing.assert_close(gradients(model), reference()[1], rtol=1e-5, atol=1e-6)


def test_stale_gradients_of_half_precision_are_sent_in_half_precision(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent: list[torch.Tensor] = []
    monkeypatch.setattr(dist, "all_reduce", lambda vector, **_: sent.append(vector))
    strategy = Stale(lay_out("ddp", "", World(size=2)), CPU, delay=1)
    strategy.weights = [nn.Parameter(torch.ones(4, dtype=torch.bfloat16))]
    strategy.weights[0].grad = torch.ones(4, dtype=torch.bfloat16)
    strategy.end_backward()
    assert [(each.dtype, each.tolist()) for each in sent] == [(torch.bfloat16, [0.5] * 5)]


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("counts", [True, False])
def test_gradients_of_an_earlier_loss_stay(precision: str, counts: bool) -> None:
    """A later loss does not concern them: its count, its scale, and, without an optimizer, its overflow."""
    weight = nn.Parameter(torch.tensor([2.0]))
    model = nn.Module()
    model.weight = weight
    weight.grad = torch.tensor([5.0])
    batch = feed(data=[1.0, 3.0], batch=2).batch()
    how = {"strategy": single(model), "precision": Precision(precision, CPU)}

    def loss_of(mb: torch.Tensor, factor: float = 1.0) -> Any:
        loss = (weight * mb * factor).mean()
        return (loss, 2) if counts else loss

    backward(loss_of, batch, **how)  # type: ignore[arg-type]
    torch.testing.assert_close(weight.grad, torch.tensor([7.0]))
    if precision == "fp16":
        backward(lambda mb: loss_of(mb, float("inf")), batch, **how)  # type: ignore[arg-type]
        torch.testing.assert_close(weight.grad, torch.tensor([7.0]))


def test_overflow_in_the_pass_of_one_optimizer_does_not_skip_the_step_of_the_other() -> None:
    """As of a GAN in fp16: one loss scale, two optimizers, whose passes may overflow apart."""
    models = [nn.Linear(1, 1, bias=False) for _ in range(2)]
    for model in models:
        nn.init.constant_(model.weight, 2.0)
    optimizers = [torch.optim.Adam(model.parameters(), lr=0.5) for model in models]
    batch = feed(data=[0.25, 0.5], batch=2).batch()  # small: the first scale is 65536
    precision = Precision("fp16", CPU)
    how: Any = {"strategy": single(*models), "precision": precision}
    for optimizer in optimizers:
        precision.watch(optimizer)

    def loss_of(model: nn.Module, factor: float, mb: torch.Tensor) -> Any:
        return factor * model(mb[:, None].float()).float().mean()

    for overflows in ((True, False), (False, True)):
        for model, optimizer, overflow in zip(models, optimizers, overflows, strict=True):
            backward(partial(loss_of, model, math.inf if overflow else 1.0), batch, **how)
            optimizer.step()
            optimizer.zero_grad()
    assert [model.weight.item() for model in models] == pytest.approx([1.5, 1.5])  # one step each
    assert [int(o.state[m.weight]["step"]) for o, m in zip(optimizers, models, strict=True)] == [1, 1]
    assert precision.scale == 2.0**14


@pytest.mark.parametrize("overflows", [(True, False), (False, True)])
def test_overflow_in_one_pass_skips_the_step_that_the_other_pass_is_for(overflows: tuple[bool, bool]) -> None:
    """The step of the whole optimizer, as GradScaler does: also of a layer that the pass leaves out."""
    model = nn.Linear(1, 1)
    before = [parameter.clone() for parameter in model.parameters()]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    precision = Precision("fp16", CPU)
    precision.watch(optimizer)
    how: Any = {"strategy": single(model), "precision": precision}

    def loss_of(overflow: bool, mb: torch.Tensor) -> torch.Tensor:
        return model.weight.sum() * math.inf if overflow else model(mb.float()[:, None]).float().mean() / 9

    for expected in (before, None):  # the next step is not skipped
        for overflow in overflows:
            backward(partial(loss_of, overflow and expected is not None), feed(4).batch(), **how)
        optimizer.step()
        optimizer.zero_grad()
        changed = [not torch.equal(*pair) for pair in zip(model.parameters(), before, strict=True)]
        assert changed == [expected is None] * 2


def one_weight() -> tuple[nn.Module, PlainForm]:
    model = nn.Linear(1, 1, bias=False)
    return model, plain(single(model), Precision("bf16", CPU))


def test_loop_runs_forward_in_half_precision_and_backward_outside() -> None:
    model, form = one_weight()
    for mb in form.over(feed(4, micro=2).batch()):
        loss = model(mb.float()[:, None])
        assert loss.dtype == torch.bfloat16
        form.backward(loss.float().mean(), None, None)
        assert not torch.is_autocast_enabled("cpu")
    assert not torch.is_autocast_enabled("cpu")


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_loop_without_a_loss_leaves_gradients_alone(precision: str) -> None:
    """Such as a pass that only collects features, between two losses of a step."""
    model = nn.Linear(1, 1, bias=False)
    model.weight.grad = torch.ones(1, 1)
    assert len(list(plain(single(model), Precision(precision, CPU)).over(feed(4, micro=2).batch()))) == 2
    assert model.weight.grad == 1


def forgotten(form: PlainForm, model: nn.Module) -> Iterator[Any]:
    for number, mb in enumerate(form.over(feed(4, micro=2).batch())):
        if number:
            yield form.backward(model(mb.float()[:, None]).mean(), None, None)


def left_early(form: PlainForm, model: nn.Module) -> Iterator[Any]:
    for mb in form.over(feed(4, micro=2).batch()):
        yield form.backward(model(mb.float()[:, None]).mean(), None, None)
        break
    form.check_complete()  # as `run.steps` of several ranks does


def repeated(form: PlainForm, model: nn.Module) -> Iterator[Any]:
    for mb in form.over(feed(4).batch()):
        for _ in range(2):
            yield form.backward(model(mb.float()[:, None]).mean(), None, None)


def mixed(form: PlainForm, model: nn.Module) -> Iterator[Any]:
    for number, mb in enumerate(form.over(feed(4, micro=2).batch())):
        yield form.backward(model(mb.float()[:, None]).mean(), [2, None][number], None)


def of_torch(form: PlainForm, model: nn.Module) -> Iterator[Any]:
    for mb in form.over(feed(4, micro=2).batch()):
        yield model(mb.float()[:, None]).float().mean().backward()


def a_vector(form: PlainForm, model: nn.Module) -> Iterator[Any]:
    for mb in form.over(feed(4, micro=2).batch()):
        yield form.backward(model(mb.float()[:, None]).mean(), torch.ones(2), None)


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (forgotten, "run.backward was called for 1 of 2 micro-batches of a step"),
        (left_early, "run.backward was called for 1 of 2 micro-batches of a step"),
        (repeated, "no micro-batch is waiting for one"),
        (mixed, "some losses of a step came with a count, others without one"),
        (of_torch, r"the gradients of a step are of loss.backward\(\)"),
        (a_vector, r"the count of a loss has shape \(2,\), expected one number"),
    ],
)
def test_loop_that_would_give_wrong_gradients_is_refused(program: Any, message: str) -> None:
    model, form = one_weight()
    with pytest.raises(RecipeError, match=message):
        list(program(form, model))


class Momentum(nn.Module):
    """Forward moves a frozen encoder towards the trained one, as those of MoCo and BYOL do."""

    def __init__(self, *, extra: int = 0) -> None:
        super().__init__()
        self.trained, self.slow = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)
        self.slow.requires_grad_(requires_grad=False)
        self.other = nn.Parameter(torch.zeros(extra), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.slow.weight.lerp_(self.trained.weight, 0.1)
        found: torch.Tensor = (self.trained(x) - self.slow(x)).square().mean()
        return found


def test_pass_that_is_discarded_leaves_frozen_parameters_as_they_were() -> None:
    model = Momentum()
    before = model.slow.weight.clone()
    batch = feed(data=TensorDataset(torch.ones(2, 1)), batch=2).batch()
    warm_up(lambda mb: model(*mb), batch, strategy=single(model), precision=Precision("fp32", CPU))
    assert torch.equal(model.slow.weight, before)


@pytest.mark.parametrize("extra", [0, 9])
def test_frozen_parameters_that_a_pass_moved_are_copied_before_the_next_one(extra: int) -> None:
    """Before the first one, all are copied, unless they are much larger than what is trained."""
    model = Momentum(extra=extra)
    first, moving = Rollback(single(model)), Moving()
    with moving.watched(single(model)):
        model(torch.ones(1, 1))
    after = model.slow.weight.clone()
    assert moving.known == [model.slow.weight]
    second = Rollback(single(model), moving.known)
    model(torch.ones(1, 1))
    second.restore()
    assert torch.equal(model.slow.weight, after)
    first.restore()
    assert torch.equal(model.slow.weight, after) == (extra > 0)


class Copies(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Copies from host memory to a device, and whether the program continues meanwhile."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.are_queued: list[bool] = []

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = kwargs or {}
        if operator is torch.ops.aten._to_copy.default and named.get("device", CPU) != args[0].device:
            self.are_queued.append(named.get("non_blocking", False))
        return operator(*args, **named)


@pytest.mark.parametrize("count", [3, torch.tensor(3)])
@pytest.mark.parametrize(("device", "is_queued"), [("cuda", True), ("meta", False)])
def test_count_that_is_in_host_memory_does_not_wait_for_cuda(
    count: torch.Tensor | int, device: str, is_queued: bool
) -> None:
    """Other devices may read it late, when it is freed."""
    there = torch.device(device)
    strategy = Strategy(lay_out("none", "", World()), there)
    part = MicroBatch(0, np.arange(3), 1.0)
    batch = Batch(samples=3, epoch=0, ends_epoch=False, micro_batches=[part], fetch=lambda _: None)
    weights = Weighting(batch, strategy=strategy, precision=Precision("fp32", there))
    with FakeTensorMode(allow_non_fake_inputs=True), Copies() as copies:  # needs no device
        weights.weighted(torch.zeros((), device=there), count, part)
    assert copies.are_queued == [is_queued]
