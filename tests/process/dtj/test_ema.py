"""dtj.EMA under strategies that shard has the averages of one process, also after a change of strategy."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.functional import cross_entropy
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.testing._internal.distributed.fake_pg import FakeStore

import dtj
from dtj.checkpoint.sharded import LoadPlan, shard_whole_state
from dtj.copies import tree
from dtj.models.gpt import GPT
from tests.process.dtj.conftest import SHAPE, Finished
from tests.process.dtj.test_strategies import layers_for
from tests.support import checkpoints

DECAY = 0.7
HALF, STEPS = 2, 4
PROGRAM = f"""
import os
from dataclasses import replace
import torch
from torch.nn.functional import cross_entropy
import dtj
from dtj.models.gpt import GPT, Shape

run = dtj.init(seed=3)
model = run.parallel(GPT(replace({SHAPE}, layers=int(os.environ["LAYERS"]))))
tokens = torch.randint(0, 32, (16, 9), generator=torch.Generator().manual_seed(5))


def loss_of(rows):
    return cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())


def score():
    return run.evaluate(lambda rows: loss_of(rows).expand(len(rows)), tokens)


score()  # before the optimizer and the average are created
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
average = dtj.EMA(model, decay={DECAY})
data = run.data(tokens, global_batch=16)
run.state(model=model, average=average, optimizer=optimizer, data=data)
for batch in run.steps(int(os.environ["STEPS"])):
    run.backward(loss_of, batch)
    optimizer.step()
    optimizer.zero_grad()
    average.update()
    own = score()
    with average.applied():
        averaged = score()
print("scores", own, averaged, score() - own)
"""


def by_hand(layers: int) -> tuple[list[float], dict[str, Any]]:
    """Losses of the last and of the averaged weights, and the averages, in plain torch."""
    torch.manual_seed(3)
    model = GPT(replace(SHAPE, layers=layers))
    follow = get_ema_multi_avg_fn(DECAY)  # type: ignore[no-untyped-call]
    average = AveragedModel(model, multi_avg_fn=follow)
    average.update_parameters(model)  # torch's first update copies the weights
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    tokens = torch.randint(0, 32, (16, 9), generator=torch.Generator().manual_seed(5))

    def loss_of(scored: torch.nn.Module) -> torch.Tensor:
        return cross_entropy(scored(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())

    for _ in range(STEPS):
        optimizer.zero_grad()
        torch.autograd.backward(loss_of(model))
        optimizer.step()
        average.update_parameters(model)
    return [loss_of(model).item(), loss_of(average).item()], dict(average.module.named_parameters())


@pytest.mark.parametrize(
    ("first", "then"),
    [
        pytest.param((2, "tp"), (3, "zero1"), id="tp, then zero1"),
        pytest.param((3, "zero1"), (2, "pp"), id="zero1, then pp"),
        pytest.param((4, "pp+ddp", "--mesh", "pp=2"), (2, "tp"), id="pp+ddp, then tp"),
        pytest.param((2, "fsdp"), (4, "tp+fsdp", "--mesh", "tp=2"), id="fsdp, then tp+fsdp"),
    ],
)
def test_averages_are_those_of_one_process(
    finish: Callable[..., Finished], tmp_path: Path, first: tuple[Any, ...], then: tuple[Any, ...]
) -> None:
    script = tmp_path / "script.py"
    script.write_text(PROGRAM)
    layers = min(layers_for(first), layers_for(then))
    for steps, (nproc, *strategy) in ((HALF, first), (STEPS, then)):
        flags = ("--nproc", nproc, "--parallel", *strategy, "--checkpoint", tmp_path / "run")
        ended = finish("run", *flags, script, STEPS=steps, LAYERS=layers)
        assert ended.code == 0, ended.err
    scores, averages = by_hand(layers)
    printed = [line.split("scores ")[1].split() for line in ended.out.splitlines() if "scores " in line]
    assert len(printed) == then[0]
    for rank in printed:
        assert [float(number) for number in rank] == pytest.approx([*scores, 0.0], rel=1e-5, abs=1e-6)
    found = checkpoints.whole(tmp_path / "run" / f"step-{STEPS}")["parts"]["average"]
    torch.testing.assert_close(found, {n: p.detach() for n, p in averages.items()}, rtol=1e-4, atol=2e-6)


def test_average_of_a_layer_that_was_unfrozen_is_restored_sharded() -> None:
    """The program that continues has it frozen again, so the average is not in its state yet."""
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=2)
    try:
        model = torch.nn.Linear(1, 4, bias=False).requires_grad_(requires_grad=False)
        fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
        first, second = dtj.EMA(model), dtj.EMA(model)
        plan = LoadPlan({"average": first}, keeps=lambda _: True)
        whole = {"average": {"weight": torch.arange(4.0)[:, None]}}
        first.load_state_dict(shard_whole_state(whole, plan)["average"])
        packed = tree.Packed({"average": first.state_dict()})
        copy = memoryview(bytearray(packed.length))
        packed.fill(copy)
        second.load_state_dict(tree.unpack(copy, plan.template)["average"])
        for average in (first, second):
            mine: Any = average.state_dict()["weight"]
            assert mine.to_local().tolist() == [[2.0], [3.0]]
    finally:
        dist.destroy_process_group()
