"""Every strategy trains the same model as a hand-written loop in one process; some need less memory."""

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.nn.utils import prune

from dtj.checkpoint.parts import Parts
from dtj.errors import RecipeError
from dtj.models.gpt import GPT, Shape
from dtj.parallel import compress, local_sgd, parallelize, tensor, zero
from dtj.parallel.average import average_gradients, buckets
from dtj.parallel.fsdp import FullyShard, shard
from dtj.parallel.layout import Layout, lay_out
from dtj.parallel.local_sgd import LocalSGD
from dtj.parallel.pipeline import Pipeline
from dtj.parallel.select import select
from dtj.parallel.stages import split_evenly
from dtj.parallel.stale import Stale
from dtj.parallel.strategy import Strategy, as_shard, blocks, broadcast, part_of
from dtj.parallel.tensor import TensorParallel
from dtj.parallel.zero import assign_owners
from dtj.ranks.world import World
from dtj.settings import Settings
from tests.unit.dtj.test_backward import Copies

SHAPE = Shape(vocabulary=32, context=8, layers=3, heads=4, width=16)


def grid(strategy: str, mesh: str) -> Any:
    return lay_out(strategy, mesh, World(size=4, local_size=4))


class Planned(nn.Sequential):
    """One layer with any tensor_plan."""

    def __init__(self, plan: dict[str, str], *, tied: bool = False, own: bool = False) -> None:
        super().__init__(nn.Linear(8, 8))
        self.plan = plan
        self.tied = self[0].weight if tied else None
        self.scale = nn.Parameter(torch.ones(1)) if own else None

    def tensor_plan(self, _ranks: int) -> dict[str, str]:
        return self.plan


CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("strategy", "model", "message"),
    [
        pytest.param(
            TensorParallel(grid("tp", ""), CPU),
            nn.Linear(4, 4),
            r"Linear has no tensor_plan\(\), so its matrices cannot be sharded.*define tensor_plan",
            id="tp without a plan",
        ),
        pytest.param(
            TensorParallel(grid("tp", ""), CPU),
            GPT(Shape(vocabulary=32, context=8, layers=1, heads=2, width=16)),
            "2 heads cannot be divided among tp=4.*divisor of 2: start N processes",
            id="heads that do not divide",
        ),
        pytest.param(
            Pipeline(grid("pp", ""), CPU),
            nn.Linear(4, 4),
            r"Linear has no pipeline_plan\(\), so it cannot be split into stages.*define pipeline_plan",
            id="pp without a plan",
        ),
        pytest.param(
            Pipeline(grid("pp", ""), CPU),
            GPT(Shape(vocabulary=32, context=8, layers=1, heads=2, width=16)),
            "--mesh pp=4: GPT has only 3 pieces.*start at most 3 processes, .*pp=3",
            id="more stages than pieces",
        ),
        pytest.param(
            TensorParallel(grid("tp", ""), CPU),
            Planned({"0": "cols"}),
            'invalid value \'cols\' for 0.*"columns" or "rows"',
            id="a typo",
        ),
        pytest.param(
            TensorParallel(grid("tp", ""), CPU),
            Planned({"1": "rows"}),
            "no weight at 1: .*'?1'?",
            id="no such module",
        ),
        pytest.param(
            TensorParallel(grid("tp", ""), CPU),
            Planned({"0": "columns"}, tied=True),
            r"tensor_plan\(\) of Planned names 0, whose weight is a tied one",
            id="a tied weight",
        ),
        pytest.param(
            TensorParallel(grid("tp", ""), CPU),
            Planned({"0": "columns"}, own=True),
            "Planned holds the parameter scale beside its layers.*move it to a module of its own",
            id="a parameter beside layers",
        ),
        pytest.param(
            TensorParallel(grid("tp", ""), CPU),
            nn.Linear(4, 4).requires_grad_(requires_grad=False),
            "nothing to train",
            id="frozen",
        ),
    ],
)
def test_model_that_cannot_be_split_is_refused(strategy: Any, model: nn.Module, message: str) -> None:
    with pytest.raises(RecipeError, match=f"(?s){message}"):
        strategy.add(model, is_healing=False)


@pytest.mark.parametrize(
    ("sizes", "stages", "ends"),
    [
        pytest.param([1, 1, 1, 1], 2, [2, 4], id="equal pieces are halved"),
        pytest.param([8, 1, 1, 1], 2, [1, 4], id="a large piece is a stage of its own"),
        pytest.param([1, 9, 9, 1], 4, [1, 2, 3, 4], id="no stage is empty"),
        pytest.param([3, 1, 1, 1, 4, 2], 3, [3, 5, 6], id="the largest sum is the smallest possible"),
    ],
)
def test_largest_stage_is_as_small_as_possible(sizes: list[int], stages: int, ends: list[int]) -> None:
    found = split_evenly(sizes, stages)
    assert len(found) == stages
    starts = [0, *found[:-1]]
    best = max(sum(sizes[a:b]) for a, b in zip([0, *ends[:-1]], ends, strict=True))
    assert max(sum(sizes[a:b]) for a, b in zip(starts, found, strict=True)) == best
    assert all(a < b for a, b in zip(starts, found, strict=True))
    assert found[-1] == len(sizes)


def test_owners_of_parameters_have_similar_loads() -> None:
    parameters = [nn.Parameter(torch.empty(n)) for n in (5, 9, 1, 3, 3, 9)]
    owners = assign_owners(parameters, 3)
    loads = [sum(p.numel() for p in parameters if owners[p] == rank) for rank in range(3)]
    assert sum(loads) == 30
    assert max(loads) - min(loads) <= 9


def test_zero1_sends_updated_parameters_with_a_few_buckets_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not with a second copy of all parameters. The stand-in for a collective fills in what others send."""
    in_flight: list[torch.Tensor] = []
    most = 0

    class Sent:
        def __init__(self, flat: torch.Tensor, src: int) -> None:
            self.flat, self.src = flat, src

        def wait(self) -> None:
            in_flight.pop(0)
            self.flat.fill_(self.src)

    def broadcast(flat: torch.Tensor, *, src: int, async_op: bool) -> Sent:
        nonlocal most
        assert async_op
        in_flight.append(flat)
        most = max(most, len(in_flight))
        return Sent(flat, src)

    monkeypatch.setattr(zero, "buckets", lambda tensors: ([each] for each in tensors))
    monkeypatch.setattr(torch.distributed, "broadcast", broadcast)
    parameters = [nn.Parameter(torch.full((2,), -1.0)) for _ in range(3 * zero._IN_FLIGHT)]
    owners = assign_owners(parameters, 4)
    sharded: Any = SimpleNamespace(layout=SimpleNamespace(data_size=4), _owner=owners)
    zero.ZeroOne._exchange(sharded, torch.optim.SGD(parameters))
    assert [p.tolist() for p in parameters] == [[owners[p]] * 2 for p in parameters]
    assert (most, in_flight) == (zero._IN_FLIGHT, [])


def test_blocks_of_a_model() -> None:
    model = GPT(SHAPE)
    assert blocks(model) == list(model.blocks)
    chain = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    assert blocks(chain) == [chain[0]]
    assert blocks(nn.Linear(2, 2)) == []
    shared = nn.Linear(2, 2)
    assert blocks(nn.ModuleList([shared, shared])) == [shared]  # fully_shard takes a module only once
    first, down = nn.Linear(2, 2), nn.Linear(2, 2)
    level = nn.ModuleList([first, nn.ModuleDict({"down": down}), nn.ParameterList([shared.bias])])
    assert blocks(nn.ModuleList([level])) == [first, down]  # those with a forward, as in a U-Net


@pytest.mark.parametrize(
    ("strategy", "device", "is_whole"),
    [
        ("ddp", "cuda", True),
        ("zero1", "cuda", True),
        ("fsdp", "cuda", False),
        ("tp", "cuda", False),
        ("pp", "cuda", False),
        ("ddp", "cpu", False),
    ],
)
def test_whole_model_is_compiled_on_gpus_if_forward_sends_nothing(
    strategy: str, device: str, is_whole: bool
) -> None:
    layout = lay_out(strategy, "", World(size=2))
    chosen = select(Settings.read({}), layout, torch.device(device), half=None)
    model = GPT(Shape(vocabulary=8, context=4, layers=2, heads=2, width=4))
    assert parallelize.to_compile(model, chosen) == ([model] if is_whole else list(model.blocks))


def test_model_that_was_compiled_as_a_whole_is_known() -> None:
    whole, blocks_only = nn.Sequential(nn.Linear(2, 2)), nn.Sequential(nn.Linear(2, 2))
    parallelize.compile_in_place([whole, *blocks_only], torch.device("cuda"))
    assert parallelize.is_compiled(whole)
    assert not parallelize.is_compiled(blocks_only)


def test_gradients_of_what_a_rank_left_out_count_as_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with a layer that is skipped at random; the stand-in for a collective adds those of another rank."""
    here, there, nowhere = (nn.Parameter(torch.zeros(1)) for _ in range(3))
    here.grad = torch.tensor([2.0])

    def all_reduce(mine: torch.Tensor, **_: Any) -> Any:
        mine += torch.tensor([0, 1, 0] if mine.dtype == torch.uint8 else [0.0, 3.0, 0.0]).to(mine)
        return SimpleNamespace(wait=lambda: None)

    monkeypatch.setattr(torch.distributed, "all_reduce", all_reduce)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda _: 2)
    average_gradients([here, there, nowhere], None)
    assert [p.grad and p.grad.item() for p in (here, there, nowhere)] == [1.0, 3.0, None]


def test_averaging_does_not_wait_for_backward_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    there = nn.Parameter(torch.zeros(1, device="meta"))
    there.grad = torch.zeros_like(there)
    done = SimpleNamespace(wait=lambda: None)
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda *_, **__: done)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda _: 2)
    with Copies() as copies:
        average_gradients([there], None)
    assert copies.are_queued == [True]


def test_stale_gradients_of_two_passes_in_a_step_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each pass would get the gradients that the other one left for later."""
    strategy = Stale(grid("ddp", ""), CPU, delay=1)
    monkeypatch.setattr(strategy, "_exchange", lambda: None)
    strategy.end_backward()
    strategy.after_step(1)
    strategy.end_backward()
    with pytest.raises(RecipeError, match=r"run.backward was called twice in a step: with --sync stale"):
        strategy.end_backward()


def test_run_that_continues_with_a_smaller_delay_has_that_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda *_, **__: None)
    strategy, weight = Stale(lay_out("ddp", "", World()), CPU, delay=2), nn.Parameter(torch.zeros(1))
    strategy.weights = [weight]
    strategy.load_state_dict({"sums": [torch.tensor([float(step), 1.0]) for step in (1, 2, 3, 4)]})
    applied = []
    for step in (5, 6, 7):
        weight.grad = torch.tensor([float(step)])
        strategy.step = step
        strategy.end_backward()
        applied.append(weight.grad.item())
    assert applied == [3, 4, 5]


@pytest.mark.parametrize(
    ("loops", "are_averaged"),
    [
        pytest.param([(0, 4)], [True, True, False, False], id="the first half of the steps"),
        pytest.param([(0, 4), (4, 12)], [True, True, *[False] * 10], id="not again in a longer loop"),
        pytest.param([(4, 4), (4, 12)], [False] * 8, id="nor after a restart in it"),
        pytest.param([(4, 12)], [True, True, *[False] * 6], id="of a checkpoint, which has one momentum"),
        pytest.param([(0, 8), (2, 4)], [True, True, False, False], id="a loop that was left early"),
    ],
)
def test_postlocal_averages_gradients_until_the_ranks_train_alone(
    monkeypatch: pytest.MonkeyPatch, loops: list[tuple[int, int]], are_averaged: list[bool]
) -> None:
    averaged: list[int] = []
    strategy = LocalSGD(grid("ddp", ""), CPU, every=1, alone_from=0.5)
    monkeypatch.setattr(local_sgd, "average_gradients", lambda *_: averaged.append(strategy.step))
    monkeypatch.setattr(local_sgd, "average", lambda *_: None)
    steps = []
    for (first, total), (end, _) in zip(loops, [*loops[1:], (loops[-1][1], 0)], strict=True):
        strategy.start(first, total)
        for step in range(first, end):
            strategy.end_backward()
            strategy.after_step(step + 1)
            steps.append(step)
    assert [step in averaged for step in steps] == are_averaged


@pytest.mark.parametrize("frozen", ["0", "1"])
def test_sync_refuses_layers_that_were_frozen_or_unfrozen(frozen: str) -> None:
    strategy = LocalSGD(grid("ddp", ""), CPU, every=2)
    model = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1).requires_grad_(requires_grad=False))
    strategy.parameters = list(model.parameters())
    strategy.weights = list(model[0].parameters())
    strategy.start(0, 9)
    strategy.after_step(1)
    model.get_submodule(frozen).requires_grad_(requires_grad=frozen == "1")
    with pytest.raises(RecipeError, match=r"a layer was frozen or unfrozen after run.parallel"):
        strategy.after_step(3)


class Shards(Strategy):
    """Replaces the parameters, as strategies do that shard them."""

    def wrap(self, model: nn.Module, **_: Any) -> nn.Module:
        model.weight = nn.Parameter(model.get_parameter("weight").detach()[:1])
        return model


def test_optimizer_of_parameters_that_are_not_trained_is_found() -> None:
    strategy, model = Shards(grid("ddp", ""), CPU), nn.Linear(2, 2, bias=False)
    early = torch.optim.SGD(model.parameters())
    strategy.add(model, is_healing=False)
    with pytest.raises(RecipeError, match=r"the optimizer early was created before run.parallel"):
        strategy.check_optimizer("early", early)
    own = nn.Parameter(torch.ones(3))
    assert strategy.check_optimizer("opt", torch.optim.SGD(model.parameters())) == ""
    warning = strategy.check_optimizer("opt", torch.optim.SGD([*model.parameters(), own]))
    assert r"a parameter that no model of run.parallel has (1, the first of shape (3,))" in warning
    strategy = Shards(lay_out("none", "", World()), CPU)  # one rank averages nothing
    assert strategy.check_optimizer("opt", torch.optim.SGD([own])) == ""


def test_parameters_of_an_optimizer_get_the_order_of_the_models() -> None:
    """Of a set, each process has another order; checkpoints and other ranks know them by number only."""
    strategy, model = Strategy(grid("ddp", ""), CPU), nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    strategy.add(model, is_healing=False)
    own, (one, two, three, four) = nn.Parameter(torch.ones(3)), model.parameters()
    groups: list[dict[str, Any]] = [
        {"params": [("x", own), ("d", three), ("c", one)]},
        {"params": [("b", four), ("a", two)], "lr": 1.0},
    ]
    opt = torch.optim.SGD(groups)
    strategy.order_parameters(opt)
    first, second = opt.param_groups
    assert all(a is b for a, b in zip(first["params"], [one, three, own], strict=True))
    assert all(a is b for a, b in zip(second["params"], [two, four], strict=True))
    assert (first["param_names"], second["param_names"]) == (["c", "d", "x"], ["a", "b"])
    assert second["lr"] == 1.0


def test_models_that_share_a_parameter_are_refused() -> None:
    strategy, layer = Strategy(grid("ddp", ""), CPU), nn.Linear(1, 1)
    strategy.add(nn.Sequential(layer), is_healing=False)
    with pytest.raises(RecipeError, match=r"a model that shares 1.weight with an earlier one"):
        strategy.add(nn.Sequential(nn.Linear(1, 1), layer), is_healing=False)


def test_layers_that_were_added_after_run_parallel_are_refused() -> None:
    strategy, model = Strategy(grid("ddp", ""), CPU), nn.Sequential(nn.Linear(1, 1))
    strategy.add(model, is_healing=False)
    model.append(nn.Linear(1, 1).requires_grad_(requires_grad=False))
    prune.identity(model[0], "weight")  # type: ignore[no-untyped-call]  # the same parameter by another name
    strategy.check_unchanged()
    model.append(nn.Linear(1, 1))
    with pytest.raises(RecipeError, match=r"the parameter 2.weight came into its model after run.parallel"):
        strategy.check_unchanged()


@pytest.mark.parametrize("differentiates_gradients", [False, True])
def test_tensor_parallel_refuses_second_derivatives(differentiates_gradients: bool) -> None:
    model, x = nn.Linear(2, 2), torch.ones(1, 2, requires_grad=True)
    model.register_forward_hook(tensor._refuse_second_derivatives)
    with (
        pytest.raises(RecipeError, match="cannot differentiate a gradient")
        if differentiates_gradients
        else nullcontext()
    ):
        torch.autograd.grad(model(x).sum(), x, create_graph=differentiates_gradients)


@pytest.mark.parametrize(("rank", "dim"), [(0, 0), (1, 0), (1, 1)])
def test_rank_takes_its_shard_of_a_whole_tensor(rank: int, dim: int) -> None:
    mesh = DeviceMesh("cpu", torch.arange(2), _init_backend=False, _rank=rank)
    whole = torch.arange(15.0).reshape(3, 5)
    expected = whole.chunk(2, dim)[rank]
    how: Any = {"shape": whole.shape, "stride": whole.stride(), "run_check": False}
    like = DTensor.from_local(torch.empty_like(expected), mesh, [Shard(dim)], **how)
    found: Any = as_shard(part_of(whole, like), like)
    torch.testing.assert_close(found.to_local(), expected, rtol=0, atol=0)
    assert (found.shape, found.stride(), found.placements) == (like.shape, like.stride(), like.placements)


class Omitting(nn.Module):
    """Leaves a buffer out of its checkpoints."""

    def state_dict(self, *how: Any, **named: Any) -> Any:
        return {name: value for name, value in super().state_dict(*how, **named).items() if name != "frozen"}


@pytest.mark.parametrize("rank", [0, 1])
def test_statistics_of_replicated_layers_are_saved_and_broadcast_as_whole_tensors(
    monkeypatch: pytest.MonkeyPatch, rank: int
) -> None:
    """As those of tp, whose ranks with other samples have others."""
    mesh = DeviceMesh("cpu", torch.arange(1), _init_backend=False, _rank=0)
    model = Omitting()
    for name in ("mean", "frozen"):
        whole = DTensor.from_local(torch.ones(2), mesh, [Replicate()], run_check=False)
        model.register_buffer(name, whole)
    strategy = Strategy(Layout(strategy="tp+ddp", sizes={"ddp": 2, "tp": 1}, rank=rank), CPU)
    strategy.replicated = False
    parts = Parts(strategy)
    parts.register({"model": model})
    assert list(parts.snapshot(1, None).shards) == (["model/mean"] if rank == 0 else [])
    sent: list[type] = []
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr("dtj.parallel.strategy.broadcast", lambda tensor: sent.append(type(tensor)))
    strategy.broadcast_buffers(model)
    assert sent == [torch.Tensor] * 2


def test_zero1_hides_gradients_after_the_closure_of_a_step() -> None:
    mine, others = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1))
    sharded: Any = SimpleNamespace(
        keeps=lambda p: p is mine, _steps={}, _check=lambda _: None, _owner={others: 1}
    )
    opt = torch.optim.Adam([mine, others])

    def closure() -> torch.Tensor:
        loss = mine + others
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    opt.register_step_pre_hook(lambda *call: zero.ZeroOne._hide(sharded, *call))
    assert opt.step(closure) == 2
    assert list(opt.state) == [mine]


class OneStepSize(torch.optim.Optimizer):
    """A number of the group comes from all gradients, as the step size of Prodigy and D-Adaptation."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"d": 0.0, "lr": 1.0})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            group["d"] += sum(p.grad.square().sum().item() for p in group["params"] if p.grad is not None)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (OneStepSize, r"cannot shard OneStepSize: its d is 4 on one rank and 16 on another, as if"),
        (torch.optim.Adam, None),
    ],
)
@pytest.mark.parametrize("first", [1, 4])
def test_zero1_compares_the_numbers_of_an_optimizer(
    monkeypatch: pytest.MonkeyPatch, kind: Any, message: str | None, first: int
) -> None:
    """The stand-in for a collective knows those of the other rank, whose weight has four elements."""

    def all_reduce(mine: torch.Tensor, **_: Any) -> None:
        mine.copy_(torch.where(mine == -16, -4.0, mine))

    monkeypatch.setattr(torch.distributed, "broadcast", lambda *_, **__: None)
    monkeypatch.setattr(torch.distributed, "all_reduce", all_reduce)
    weights = [nn.Parameter(torch.ones(16)), nn.Parameter(torch.ones(4))]
    sharded = zero.ZeroOne(lay_out("zero1", "", World(size=2)), CPU)
    optimizer = kind(weights)
    for step in range(1, first + 1):
        for weight in weights:
            weight.grad = torch.ones_like(weight) if step == first else torch.zeros_like(weight)
        sharded._owner = assign_owners(weights, 2)
        with pytest.raises(RecipeError, match=message) if message and step == first else nullcontext():
            optimizer.step()
    sharded._owner = {}  # its hooks stay


def test_layers_that_change_their_buffers_do_so_once_a_step_if_they_are_recomputed() -> None:
    def trained(*, recomputes: bool) -> tuple[dict[str, torch.Tensor], list[torch.Tensor | None]]:
        torch.manual_seed(0)
        block = nn.Sequential(nn.BatchNorm1d(4), nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4)))
        model = nn.Sequential(block, nn.Linear(4, 1))
        if recomputes:
            parallelize.recompute(model, [block])
        for _ in range(2):
            model(torch.randn(8, 4)).square().mean().backward()
        return model.state_dict(), [p.grad for p in model.parameters()]

    torch.testing.assert_close(trained(recomputes=True), trained(recomputes=False), rtol=0, atol=0)


def test_buckets_hold_all_tensors_and_never_mix_types() -> None:
    tensors = [torch.zeros(3), torch.zeros(2), torch.zeros(2, dtype=torch.float64), torch.zeros(9_000_000)]
    found = list(buckets(tensors))
    assert [t for bucket in found for t in bucket] == tensors
    assert [len(bucket) for bucket in found] == [2, 1, 1]


class Sharded(nn.Module):
    """Records when its gradients are reduced, as an FSDP module."""

    def __init__(self, calls: list[bool | str]) -> None:
        super().__init__()
        self.calls = calls

    def set_requires_gradient_sync(self, reduces: bool) -> None:
        self.calls.append(reduces)


@pytest.mark.parametrize(
    ("reduce_once", "expected"), [(False, ["1", "2", "3"]), (True, [False, "1", "2", True, "3"])]
)
def test_fsdp_reduces_gradients_after_each_micro_batch_or_once(
    reduce_once: bool, expected: list[Any]
) -> None:
    calls: list[Any] = []
    strategy = FullyShard(grid("fsdp", ""), CPU, half=None, reduce_once=reduce_once)
    strategy.models = [Sharded(calls)]

    def loss(micro_batch: str) -> torch.Tensor:
        calls.append(micro_batch)
        return torch.zeros((), requires_grad=True)

    strategy.accumulate(loss, ["1", "2", "3"])
    assert calls == expected


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (torch.ones(()), "scale has no dimension, so it cannot be sharded"),
        (torch.ones(0, 2), "scale has no element"),
        (torch.ones(2, 3).t(), r"scale is not contiguous: its strides are \(1, 3\)"),
    ],
)
def test_parameter_that_cannot_be_sharded_is_named(value: torch.Tensor, message: str) -> None:
    model = nn.Module()
    model.scale = nn.Parameter(value)
    with pytest.raises(RecipeError, match=message):
        shard(model, None, half=None)


def test_reduce_once_is_refused_if_nothing_is_sharded() -> None:
    with pytest.raises(RecipeError, match="--reduce-once does not work with --parallel ddp"):
        select(Settings(reduce_once=True), grid("ddp", ""), CPU, half=None)


@pytest.mark.parametrize("kind", [torch.float32, torch.complex64, torch.int16])
def test_buffer_with_gaps_gets_what_rank_0_sent_and_its_neighbors_stay(
    kind: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = torch.arange(1, 7).to(kind)

    def receive(sent: torch.Tensor, **_: Any) -> None:
        sent.view(-1).copy_(values.view(sent.dtype))

    monkeypatch.setattr(dist, "broadcast", receive)
    table = torch.zeros(3, 3, dtype=kind)
    broadcast(table[:, :2])
    assert table.tolist() == [[1, 2, 0], [3, 4, 0], [5, 6, 0]]
    with pytest.raises(RuntimeError, match=r"Please clone\(\)"):
        broadcast(torch.zeros(1, dtype=kind).expand(6))  # not the memory behind it


@pytest.mark.parametrize("name", ["topk", "powersgd", "bf16"])
def test_sparse_gradients_are_sent_as_they_are(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compress, "_as_they_are", lambda _, bucket: bucket)
    bucket: Any = SimpleNamespace(buffer=lambda: torch.eye(2).to_sparse())
    assert compress.hook(name, None).average(None, bucket) is bucket
