"""Policies that communicate less or later do what their papers say, up to rounding."""

from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy

from dtj.data.feed import Batch
from dtj.data.splitter import MicroBatch
from dtj.models.gpt import GPT
from dtj.parallel.compress import PowerSGD, TopK, WithFeedback
from dtj.parallel.ddp import DataParallel
from dtj.parallel.layout import lay_out
from dtj.ranks.world import World
from dtj.step.backward import backward
from dtj.step.precision import Precision
from tests.process.dtj.conftest import PROGRAMS, SHAPE, Finished, Start, wait_for
from tests.process.dtj.test_strategies import batches, weights

Finish = Callable[..., Finished]
STEPS = 8


def model() -> GPT:
    torch.manual_seed(3)
    return GPT(SHAPE)


def gradients(net: nn.Module, rows: torch.Tensor) -> list[torch.Tensor]:
    loss = cross_entropy(net(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
    return list(torch.autograd.grad(loss, list(net.parameters())))


@torch.no_grad()
def step(net: nn.Module, changes: list[torch.Tensor], rate: float = 0.1) -> None:
    for weight, change in zip(net.parameters(), changes, strict=True):
        weight.sub_(rate * change)


@torch.no_grad()
def assign(net: nn.Module, values: list[torch.Tensor]) -> None:
    for weight, value in zip(net.parameters(), values, strict=True):
        weight.copy_(value)


def mean(lists: list[list[torch.Tensor]]) -> list[torch.Tensor]:
    return [torch.stack(values).mean(0) for values in zip(*lists, strict=True)]


def alone_for(every: int, *, from_step: int = 0, outer: bool = False) -> GPT:
    """Two models on halves of each batch, in one process, which synchronize every `every` steps."""
    pair = [model(), model()]
    met_at = [p.detach().clone() for p in pair[0].parameters()]
    momentum = [torch.zeros_like(p) for p in met_at]
    for number, rows in enumerate(batches(STEPS), start=1):
        half = len(rows) // 2
        found = [gradients(net, part) for net, part in zip(pair, (rows[:half], rows[half:]), strict=True)]
        if number <= from_step:
            found = [mean(found)] * 2
        for net, own in zip(pair, found, strict=True):
            step(net, own)
        if number <= from_step:
            met_at = [p.detach().clone() for p in pair[0].parameters()]
        if number > from_step and number % every == 0:
            together = mean([[p.detach() for p in net.parameters()] for net in pair])
            if outer:  # Nesterov, as in torch.optim.SGD
                change = [was - now for was, now in zip(met_at, together, strict=True)]
                momentum = [0.9 * m + c for m, c in zip(momentum, change, strict=True)]
                together = [w - 0.7 * (c + 0.9 * m) for w, c, m in zip(met_at, change, momentum, strict=True)]
            met_at = together
            for net in pair:
                assign(net, together)
    return pair[0]


def delayed(by: int) -> GPT:
    net, waiting = model(), deque[list[torch.Tensor]]()
    for rows in batches(STEPS):
        waiting.append(gradients(net, rows))
        if len(waiting) > by:
            step(net, waiting.popleft())
    return net


def run(
    finish: Finish, out: Path, *flags: object, steps: int = STEPS, **env: object
) -> dict[str, torch.Tensor]:
    out.mkdir(exist_ok=True)
    compared = ("--nproc", 2, "--check-every", 1)  # bit for bit, under local SGD at sync points
    command = ("run", *compared, "--checkpoint", out / "run", *flags, PROGRAMS / "gpt.py")
    ended = finish(*command, OUT=out, SGD=1, STEPS=steps, **env)
    assert ended.code == 0, ended.err
    return weights(out, steps)


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        pytest.param("every", lambda: delayed(0), id="every step"),
        pytest.param("local:4", lambda: alone_for(4), id="local SGD"),
        pytest.param("postlocal:2", lambda: alone_for(2, from_step=4), id="post-local SGD"),
        pytest.param("diloco:4", lambda: alone_for(4, outer=True), id="DiLoCo"),
        pytest.param("stale:2", lambda: delayed(2), id="bounded staleness"),
    ],
)
def test_policy_follows_its_definition(
    finish: Finish, tmp_path: Path, policy: str, expected: Callable[[], GPT]
) -> None:
    found = run(finish, tmp_path, "--sync", policy)
    torch.testing.assert_close(dict(found), dict(expected().state_dict()), rtol=1e-4, atol=1e-6)
    if policy != "every":
        plain = delayed(0).state_dict()
        assert not torch.allclose(found["head.weight"], plain["head.weight"], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("policy", ["local:2", "diloco:4", "stale:2"])
def test_resumed_run_equals_an_uninterrupted_one(finish: Finish, tmp_path: Path, policy: str) -> None:
    unbroken = run(finish, tmp_path / "unbroken", "--sync", policy)
    run(finish, tmp_path / "resumed", "--sync", policy, steps=4)
    resumed = run(finish, tmp_path / "resumed", "--sync", policy)
    assert all(torch.equal(resumed[name], weight) for name, weight in unbroken.items())


@pytest.mark.parametrize("before", [1, 2])
def test_diloco_resumes_a_run_without_it(finish: Finish, tmp_path: Path, before: int) -> None:
    """The first outer step starts from the weights of the checkpoint, not from the initial ones."""
    run(finish, tmp_path, "--nproc", before, steps=4)
    found = run(finish, tmp_path, "--sync", "diloco:4")
    expected = alone_for(4, from_step=4, outer=True).state_dict()
    torch.testing.assert_close(dict(found), dict(expected), rtol=1e-4, atol=1e-6)


def test_state_of_another_policy_is_left_out(finish: Finish, tmp_path: Path) -> None:
    run(finish, tmp_path, "--sync", "diloco:2", steps=2)
    run(finish, tmp_path, "--sync", "stale:1", steps=3)


def test_slow_rank_delays_the_others_only_when_they_are_at_most_steps_ahead(
    start: Start, tmp_path: Path
) -> None:
    flags = ("--nproc", 2, "--sync", "stale:3", PROGRAMS / "gpt.py")
    command = start("run", *flags, OUT=tmp_path, SGD=1, STEPS=40, WAIT_AT=11)
    done = tmp_path / "step"
    wait_for(lambda: done.exists() and done.read_text() == "13", "rank 0 to be three steps ahead of step 10")
    (tmp_path / "go").touch()
    assert command.wait().code == 0
    assert done.read_text() == "40"


def test_checkpoints_wait_for_the_next_sync_point_but_a_score_brings_it_forward(
    finish: Finish, tmp_path: Path
) -> None:
    scores = "-inf,-inf,-inf,5,-inf,-inf,3,-inf"
    run(finish, tmp_path, "--sync", "local:3", "--save-every", 2, "--keep", 9, SCORES=scores)
    assert sorted(p.name[5:] for p in (tmp_path / "run").glob("step-*")) == ["3", "4", "6", "8"]


@pytest.fixture(scope="module")
def exact(finish_once: Finish, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of 24 steps whose gradients are not compressed."""
    folder = tmp_path_factory.mktemp("exact")
    run(finish_once, folder, steps=24)
    return folder


@pytest.mark.parametrize("hook", ["bf16", "fp16", "powersgd:2", "topk:10"])
def test_loss_falls_with_compressed_gradients(finish: Finish, exact: Path, tmp_path: Path, hook: str) -> None:
    found = run(finish, tmp_path, "--compress", hook, steps=24)
    losses = [
        [float(line) for line in (folder / "losses.txt").read_text().split()] for folder in (tmp_path, exact)
    ]
    gains = [sum(each[:4]) - sum(each[-4:]) for each in losses]
    assert gains[0] > 0.7 * gains[1] > 0
    assert not torch.equal(found["head.weight"], weights(exact, 24)["head.weight"])


class Bucket:
    """A bucket as DDP passes it to a hook."""

    def __init__(self, parameters: list[nn.Parameter], values: list[torch.Tensor]) -> None:
        self._parameters = parameters
        self._flat = torch.cat([v.reshape(-1) for v in values])

    def parameters(self) -> list[nn.Parameter]:
        return self._parameters

    def gradients(self) -> list[torch.Tensor]:
        parts = torch.split(self._flat, [p.numel() for p in self._parameters])
        return [part.view_as(p) for part, p in zip(parts, self._parameters, strict=True)]

    def buffer(self) -> torch.Tensor:
        return self._flat


@pytest.fixture
def one_rank() -> Iterator[None]:
    dist.init_process_group("gloo", store=torch._C._distributed_c10d.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize("hook", [TopK(10), PowerSGD(2)], ids=lambda h: type(h).__name__)
def test_hook_sends_later_what_it_left_out(hook: WithFeedback) -> None:
    chance = torch.Generator().manual_seed(0)
    parameters = [nn.Parameter(torch.zeros(20, 30)), nn.Parameter(torch.zeros(7))]
    optimizer = torch.optim.SGD(parameters)
    true = [torch.zeros(20, 30), torch.zeros(7)]
    sent = [torch.zeros(20, 30), torch.zeros(7)]
    for _ in range(5):
        values = [torch.randn(p.shape, generator=chance) for p in parameters]
        bucket: Any = Bucket(parameters, values)
        out = hook.average(None, bucket).wait()
        assert out is bucket.buffer()
        for parameter, gradient in zip(parameters, bucket.gradients(), strict=True):
            parameter.grad = gradient
        optimizer.step()
        for total, value in zip(true, values, strict=True):
            total.add_(value)
        for total, value in zip(sent, bucket.gradients(), strict=True):
            total.add_(value)
    left = [hook._left[p] for p in parameters]
    for total, came, rest in zip(true, sent, left, strict=True):
        torch.testing.assert_close(came + rest, total, rtol=1e-4, atol=1e-4)
    assert left[0].abs().sum() > 1, "nothing was left out"


class TwoBranches(nn.Module):
    """The first is used in every pass, the second in every other one."""

    def __init__(self) -> None:
        super().__init__()
        self.always, self.sometimes = (nn.Linear(20, 10, bias=False) for _ in "ab")

    def forward(self, x: torch.Tensor, *, uses_both: bool) -> Any:
        return self.always(x) + self.sometimes(x) if uses_both else self.always(x)


@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize("what", ["a critic, in the pass of its generator", "an unused branch"])
@pytest.mark.parametrize("hook_of", [lambda: TopK(10), lambda: PowerSGD(1)], ids=["topk", "powersgd"])
def test_nothing_is_sent_of_gradients_that_are_not_used(
    hook_of: Callable[[], WithFeedback], what: str
) -> None:
    """And nothing is lost of those that are: what an optimizer got and what remains equals the true ones."""
    torch.manual_seed(0)
    hook, cpu = hook_of(), torch.device("cpu")
    strategy = DataParallel(lay_out("ddp", "", World(size=1)), cpu, hook=hook)
    strategy.ddp_options = {"find_unused_parameters": True}
    branches = TwoBranches()
    net, weight = strategy.add(branches, is_healing=False), branches.sometimes.weight
    optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
    true, got = torch.zeros(10, 20), torch.zeros(10, 20)
    for number in range(12):
        x, c = torch.randn(4, 20), torch.randn(4, 10)
        is_used = number % 2 == 0

        def loss_of(_: Any, x: torch.Tensor = x, c: torch.Tensor = c, used: bool = is_used) -> Any:
            return (net(x, uses_both=used or what != "an unused branch") * c).sum()

        part = MicroBatch(0, np.arange(4), 1.0)
        batch = Batch(samples=4, epoch=0, ends_epoch=False, micro_batches=[part], fetch=lambda _: None)
        backward(loss_of, batch, strategy=strategy, precision=Precision("fp32", cpu))
        if is_used:
            true += c.T @ x
            assert weight.grad is not None
            got += weight.grad
        if is_used or what == "an unused branch":
            optimizer.step()
        optimizer.zero_grad()
    left = hook._left[weight]  # type: ignore[index]  # mypy thinks that a layer has a plain tensor
    torch.testing.assert_close(got + left, true, rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("one_rank")
def test_powersgd_is_exact_for_a_matrix_of_its_rank() -> None:
    chance = torch.Generator().manual_seed(0)
    low = torch.randn(20, 2, generator=chance) @ torch.randn(2, 30, generator=chance)
    bucket: Any = Bucket([nn.Parameter(torch.empty(20, 30))], [low])
    PowerSGD(2).average(None, bucket)
    torch.testing.assert_close(bucket.gradients()[0], low, rtol=1e-4, atol=1e-4)


def test_last_step_is_logged_while_a_message_is_in_flight(finish: Finish, tmp_path: Path) -> None:
    """With stale:4 the message of an earlier step may be read four steps later."""
    ended = finish("run", "--nproc", 2, "--sync", "stale:4", PROGRAMS / "gpt.py", OUT=tmp_path, STEPS=3)
    assert ended.code == 0, ended.err
    assert "step 3/3" in ended.out


@pytest.mark.usefixtures("one_rank")
def test_topk_sends_the_largest_elements_of_a_bucket() -> None:
    bucket: Any = Bucket([nn.Parameter(torch.empty(20))], [torch.arange(20.0) - 18])
    TopK(10).average(None, bucket)
    assert bucket.gradients()[0].tolist() == [-18, -17] + [0] * 18
