"""Every strategy trains the same model as a hand-written loop in one process; some need less memory."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule
from torch.nn.functional import cross_entropy
from torch.testing._internal.distributed.fake_pg import FakeStore

from dtj.data import order
from dtj.models.gpt import GPT
from dtj.parallel.compress import Hook
from dtj.parallel.ddp import RebuildableDDP
from dtj.parallel.fsdp import shard
from dtj.telemetry.metrics import Meter
from tests.process.dtj.conftest import PROGRAMS, SHAPE, Finished
from tests.support import checkpoints

Finish = Callable[..., Finished]
CLIP = 0.4  # below the norm of most steps
STEPS = 6  # an epoch of 16, 16, 16 and 4 samples, and two steps of the next


def by_hand(steps: int, *, layers: int = SHAPE.layers) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Losses and final weights of the program gpt.py, in plain torch; it clips the first STEPS steps only."""
    torch.manual_seed(3)
    model = GPT(replace(SHAPE, layers=layers))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, eps=1e-4)
    losses = []
    for step, rows in enumerate(batches(steps)):
        loss = cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        if step < STEPS:
            nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        losses.append(loss.item())
    return losses, model.state_dict()


def all_tokens() -> torch.Tensor:
    return torch.randint(0, 32, (52, 9), generator=torch.Generator().manual_seed(5))


def batches(steps: int) -> Iterator[torch.Tensor]:
    """Global batches of the program gpt.py."""
    tokens = all_tokens()
    for step in range(steps):
        epoch, batch = divmod(step, 4)
        positions = np.arange(16 * batch, min(52, 16 * batch + 16))
        yield tokens[torch.from_numpy(order.shuffled(positions, n=52, seed=3, epoch=epoch))]


def train(
    finish: Finish, out: Path, *flags: object, steps: int = STEPS, clips: bool = True, **env: object
) -> list[float]:
    """Losses of the program gpt.py under `dtj run`."""
    out.mkdir()
    command = ("run", "--checkpoint", out / "run", *flags, PROGRAMS / "gpt.py")
    ended = finish(*command, OUT=out, STEPS=steps, **({"CLIP": CLIP} if clips else {}), **env)
    assert ended.code == 0, ended.err
    assert "Warning" not in ended.err
    return losses(out)


def losses(out: Path) -> list[float]:
    return [float(line) for line in (out / "losses.txt").read_text().split()]


@pytest.fixture(scope="module")
def trained(finish_once: Finish, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Returns the folder of a run of the program gpt.py with these flags; each is run once."""
    found: dict[tuple[object, ...], Path] = {}

    def folder(*flags: object, layers: int = SHAPE.layers) -> Path:
        key = (*flags, layers)
        if key not in found:
            found[key] = tmp_path_factory.mktemp("trained") / "out"
            train(finish_once, found[key], *flags, EVALUATE=1, LAYERS=layers)
        return found[key]

    return folder


def layers_for(flags: Sequence[object]) -> int:
    """One block for tensor parallelism: torch plans its operations for each, for a second a rank."""
    return 1 if any(str(flag).startswith("tp") for flag in flags) else SHAPE.layers


def weights(out: Path, step: int) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = checkpoints.whole(out / "run" / f"step-{step}")["parts"]["model"]
    return found


def assert_same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    # Weights are of about 0.02; a step of AdamW moves them by up to 0.01.
    torch.testing.assert_close(dict(found), dict(expected), rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize(
    "flags",
    [
        pytest.param(("--nproc", 2, "--parallel", "ddp"), id="ddp"),
        pytest.param(("--nproc", 3, "--parallel", "zero1"), id="zero1"),
        pytest.param(("--nproc", 2, "--parallel", "fsdp"), id="fsdp"),
        pytest.param(
            ("--nproc", 3, "--parallel", "fsdp", "--micro-batch", 2), id="fsdp, uneven micro-batches"
        ),
        pytest.param(("--nproc", 4, "--parallel", "hsdp", "--mesh", "fsdp=2"), id="hsdp"),
        pytest.param(("--nproc", 2, "--parallel", "tp"), id="tp"),
        pytest.param(("--nproc", 4, "--parallel", "tp+ddp", "--mesh", "tp=2"), id="tp+ddp"),
        pytest.param(("--nproc", 4, "--parallel", "tp+fsdp", "--mesh", "tp=2"), id="tp+fsdp"),
        pytest.param(("--nproc", 3, "--parallel", "pp"), id="pp"),
        pytest.param(("--nproc", 4, "--parallel", "pp+ddp", "--mesh", "pp=2"), id="pp+ddp"),
        pytest.param(("--nproc", 2, "--recompute"), id="ddp, recomputed activations"),
    ],
)
def test_same_losses_weights_and_score_as_by_hand(
    trained: Callable[..., Path], flags: tuple[object, ...]
) -> None:
    layers = layers_for(flags)
    expected, final = by_hand(STEPS, layers=layers)
    out = trained(*flags, layers=layers)
    assert losses(out) == pytest.approx(expected, rel=1e-5)
    assert_same(weights(out, STEPS), final)
    model, tokens = GPT(replace(SHAPE, layers=layers)), all_tokens()
    model.load_state_dict(final)
    right = (model(tokens[:, :-1]).argmax(-1) == tokens[:, 1:]).sum().item()
    # Rounding may change one prediction.
    assert float((out / "score.txt").read_text()) * 8 * 52 == pytest.approx(right, abs=1.01)


@pytest.mark.parametrize(
    "flags", [("--nproc", 2, "--parallel", "tp"), ("--nproc", 4, "--parallel", "tp+ddp", "--mesh", "tp=2")]
)
def test_tensor_parallel_ranks_with_dropout_stay_replicas(finish: Finish, flags: tuple[Any, ...]) -> None:
    """Replicated weights are the same on all ranks only if the ranks drop the same activations."""
    ended = finish("run", *flags, PROGRAMS / "dropout.py")
    assert ended.code == 0, ended.err
    printed = [line.partition("weights ")[2] for line in ended.out.splitlines() if "weights " in line]
    assert len(printed) == flags[1]
    assert len(set(printed)) == 1


@pytest.mark.parametrize(
    "flags", [("hsdp", "--mesh", "fsdp=2"), ("tp+ddp", "--mesh", "tp=2"), ("pp+ddp", "--mesh", "pp=2")]
)
def test_ranks_wait_in_every_group_for_one_that_pauses(
    finish: Finish, tmp_path: Path, flags: tuple[str, ...]
) -> None:
    """The agent ends a hang; a pause may take an hour, and torch's limits are 10 and 30 minutes.

    Nor may a save in the background fail because one rank needs half an hour longer for its shards.
    """
    saves = ("--checkpoint", tmp_path, "--save-every", 1, "--async-save")
    ended = finish("run", "--nproc", 4, "--parallel", *flags, *saves, PROGRAMS / "timeouts.py")
    assert ended.code == 0, ended.err
    found = [line.partition("timeouts ")[2] for line in ended.out.splitlines() if "timeouts " in line]
    assert found == ["{86400.0}"] * 4


@pytest.mark.parametrize(
    ("saved_by", "read_by"),
    [
        pytest.param(
            ("--nproc", 4, "--parallel", "fsdp"),
            [
                ("--nproc", 1),
                ("--nproc", 3),
                *(("--nproc", 2, "--parallel", s) for s in ("fsdp", "zero1", "tp", "pp")),
                ("--nproc", 4, "--parallel", "tp+fsdp", "--mesh", "tp=2"),
            ],
            id="sharded",
        ),
        pytest.param(
            (), [("--nproc", 2, "--parallel", s) for s in ("fsdp", "zero1", "tp", "pp")], id="whole"
        ),
    ],
)
def test_checkpoint_is_read_by_any_strategy_at_any_size(
    finish: Finish,
    trained: Callable[..., Path],
    tmp_path: Path,
    saved_by: tuple[object, ...],
    read_by: list[tuple[object, ...]],
) -> None:
    """The loss of the next step depends on the weights, the weights after it on the optimizer's state.

    That step is not clipped, so that torch plans fewer operations for tensor parallelism.
    """
    for number, flags in enumerate(read_by):
        out, layers = tmp_path / str(number), layers_for(flags)
        resume = ("--resume", trained(*saved_by, layers=layers) / "run")
        expected, final = by_hand(STEPS + 1, layers=layers)
        found = train(finish, out, *flags, *resume, steps=STEPS + 1, clips=False, LAYERS=layers)
        assert found == pytest.approx(expected[STEPS:], rel=1e-5), flags
        assert_same(weights(out, STEPS + 1), final)


# The program gpt.py with a volume at $OUT/run that only rank 0 mounts.
HIDDEN = f"""
import ctypes
import os
import runpy

if os.environ["RANK"] == "1":
    libc, folder = ctypes.CDLL(None, use_errno=True), os.environ["OUT"].encode() + b"/run"
    new_namespace, private = 0x20000, 0x44000
    if libc.unshare(new_namespace) or libc.mount(b"none", b"/", None, private, None):
        raise SystemExit(os.strerror(ctypes.get_errno()))
    assert libc.mount(b"none", folder, b"tmpfs", 0, None) == 0
runpy.run_path({str(PROGRAMS / "gpt.py")!r}, run_name="__main__")
"""


REDUCED = """
import torch, dtj

run = dtj.init(parallel="fsdp", micro_batch=1)
model = run.parallel(torch.nn.Linear(4, 4))
run.data(torch.ones(8, 4), global_batch=4)
for batch in run.steps(1):
    for number, mb in enumerate(batch):
        if number:
            assert model.weight.grad.to_local().numel() == 8, "half of the gradient"
        run.backward(model(mb).mean())
"""


def test_fsdp_holds_no_whole_gradients_between_micro_batches(finish: Finish, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(REDUCED)
    ended = finish("run", "--nproc", 2, program)
    assert ended.code == 0, ended.err


@pytest.mark.parametrize(
    ("saved_by", "code", "message"),
    [
        pytest.param(("--nproc", 1), 0, "resuming from", id="whole: rank 0 reads it for all"),
        pytest.param(
            ("--nproc", 2, "--parallel", "fsdp"), 1, "fix: mount the volume on every node", id="sharded"
        ),
    ],
)
def test_volume_that_only_rank_0_mounts(
    finish: Finish, tmp_path: Path, saved_by: tuple[object, ...], code: int, message: str
) -> None:
    """All ranks agree whether the last step is saved already, and save it together or not at all."""
    out = tmp_path / "out"
    train(finish, out, *saved_by, steps=2)
    script = tmp_path / "hidden.py"
    script.write_text(HIDDEN)
    ended = finish(
        *("run", "--nproc", 2, "--parallel", "fsdp", "--checkpoint", out / "run", script), OUT=out, STEPS=2
    )
    if "not permitted" in ended.err:
        pytest.skip("no right to hide a volume from a process")
    assert (ended.code, "Traceback" in ended.err) == (code, False), ended.err
    assert message in ended.err


def test_stage_without_parameters_clips_with_the_others(finish: Finish, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        """
import torch
from torch import nn
import dtj

class Net(nn.Sequential):
    def pipeline_plan(self):
        return [(layer, [layer]) for layer in self]

run = dtj.init()
model = run.parallel(Net(nn.Linear(4, 1, bias=False), nn.Identity()))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
run.data(torch.utils.data.TensorDataset(torch.ones(8, 4)), global_batch=4)
for batch in run.steps(1):
    run.backward(lambda mb: model(mb[0]).mean(), batch)
    print("norm", float(run.clip(0.5)))
"""
    )
    ended = finish("run", "--nproc", 2, "--parallel", "pp", script)
    assert ended.code == 0, ended.err
    assert ended.out.count("norm 2.0") == 2  # of a gradient of ones


# Trains with an optimizer; "Shared" keeps state that belongs to no parameter.
OPTIMIZERS = """
import os
import torch
from torch import nn
import dtj

class Shared(torch.optim.SGD):
    def step(self, closure=None):
        super().step(closure)
        self.state["all"]["mean"] = 1 + self.state["all"].get("mean", torch.zeros(3))

run = dtj.init()
model = run.parallel(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1)))
kind = {"Shared": Shared}.get(os.environ["OPTIMIZER"]) or getattr(torch.optim, os.environ["OPTIMIZER"])
optimizer = kind(model.parameters(), lr=0.1)
data = run.data(torch.utils.data.TensorDataset(torch.ones(8, 4)), global_batch=4)
run.state(model=model, optimizer=optimizer, data=data)
for batch in run.steps(int(os.environ["STEPS"])):
    loss = run.backward(lambda mb: model(mb[0]).mean(), batch)
    optimizer.step(lambda: loss)
    optimizer.zero_grad()
print(f"state of {len(optimizer.state)}")
print("mean", optimizer.state["all"].get("mean", torch.zeros(0)).tolist())
"""


@pytest.mark.parametrize("name", ["LBFGS", "Shared"])
def test_optimizer_that_zero1_cannot_shard_is_refused(finish: Finish, tmp_path: Path, name: str) -> None:
    script = tmp_path / "script.py"
    script.write_text(OPTIMIZERS)
    ended = finish("run", "--nproc", 2, "--parallel", "zero1", script, OPTIMIZER=name, STEPS=2)
    assert (ended.code, "Traceback" in ended.err) == (78, False), ended.err
    assert f"--parallel zero1 cannot shard {name}, which does not update each parameter" in ended.err


def test_zero1_shards_state_that_an_optimizer_creates_before_its_first_step(
    finish: Finish, tmp_path: Path
) -> None:
    script = tmp_path / "script.py"
    script.write_text(OPTIMIZERS)
    ended = finish("run", "--nproc", 2, "--parallel", "zero1", script, OPTIMIZER="Adagrad", STEPS=2)
    assert ended.code == 0, ended.err
    assert [f"state of {n}" in ended.out for n in range(5)] == [False, True, False, True, False], ended.out


@pytest.fixture
def first_of_two() -> Iterator[None]:
    """A rank whose messages no other rank gets."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("first_of_two")
def test_mfu_of_tensor_parallel_counts_what_a_rank_computes() -> None:
    """Not the whole operation, as a sharded tensor shows it, nor the one that finds out how it is sharded."""
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    split = nn.Sequential(nn.Linear(4, 6, bias=False), nn.Linear(6, 4, bias=False))
    ranks = init_device_mesh("cpu", (2,))
    parallelize_module(split, ranks, {"0": ColwiseParallel(), "1": RowwiseParallel()})
    meter = Meter(total_steps=1, clock=lambda: 0.0, peak_flops=1e12)
    with meter.counting(2):
        torch.autograd.backward(split(torch.ones(2, 4, requires_grad=True)).sum())
    each_matrix = 4 * 6 / 2  # elements on this rank
    assert meter.flops_per_sample == 2 * 3 * 2 * each_matrix  # forward, and twice as much backward


class Rotated(nn.Module):
    """Has a trained complex weight, and one of a type that gloo does not send."""

    def __init__(self) -> None:
        super().__init__()
        self.turn = nn.Linear(2, 2, bias=False, dtype=torch.complex64)
        self.turn.base = nn.Parameter(torch.ones(1).to(torch.float8_e4m3fn), requires_grad=False)
        self.score = nn.Linear(2, 1, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.score(self.turn(x).abs())
        return found


class Noted(Hook):
    """Notes whose gradients DDP wants to average."""

    def __init__(self) -> None:
        super().__init__()
        self.parameters: set[torch.Tensor] = set()

    def _send(self, bucket: Any) -> "torch.futures.Future[torch.Tensor]":
        self.parameters |= set(bucket.parameters())
        done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done


@pytest.mark.usefixtures("first_of_two")
def test_ddp_averages_complex_gradients() -> None:
    model, hook = Rotated(), Noted()
    wrapped = RebuildableDDP(model, device=torch.device("cpu"), hook=hook, init_sync=False)
    torch.autograd.backward(wrapped(torch.ones(1, 2, dtype=torch.complex64)).sum())
    assert hook.parameters == {model.turn.weight, model.score.weight}


class Tied(nn.Module):
    """Its last block has the weight of the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(4, 2)
        self.blocks = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 4, bias=False))
        self.blocks[1].weight = self.embed.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.blocks(self.embed(tokens))
        return found


@pytest.mark.usefixtures("first_of_two")
def test_weight_that_a_block_shares_stays_tied_when_it_is_sharded() -> None:
    model = Tied()
    shard(model, init_device_mesh("cpu", (2,)), half=None)
    torch.autograd.backward(model(torch.zeros(1, dtype=torch.int64)).sum())
    assert model.blocks[1].weight is model.embed.weight
    assert [isinstance(block, FSDPModule) for block in model.blocks] == [True, False]


def test_zero1_shards_the_optimizers_of_all_models(finish: Finish, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        """
import torch
import dtj

run = dtj.init()
models = [run.parallel(torch.nn.Linear(4, 4)) for _ in range(2)]
optimizers = [torch.optim.Adam(model.parameters()) for model in models]
run.data(torch.utils.data.TensorDataset(torch.ones(8, 4)), global_batch=4)
for batch in run.steps(1):
    run.backward(lambda mb: models[1](models[0](mb[0])).mean(), batch)
    for optimizer in optimizers:
        optimizer.step()
print("keeps", *(len(optimizer.state) for optimizer in optimizers))
"""
    )
    ended = finish("run", "--nproc", 2, "--parallel", "zero1", script)
    assert ended.code == 0, ended.err
    assert ended.out.count("keeps 1 1\n") == 2  # of a weight and a bias each


def test_optimizer_state_of_no_parameter_is_restored_whole_in_a_sharded_run(
    finish: Finish, tmp_path: Path
) -> None:
    script = tmp_path / "script.py"
    script.write_text(OPTIMIZERS)
    for steps in (2, 3):
        flags = ("--nproc", 2, "--parallel", "fsdp", "--checkpoint", tmp_path / "run")
        ended = finish("run", *flags, script, OPTIMIZER="Shared", STEPS=steps)
        assert ended.code == 0, ended.err
    assert ended.out.count("mean [3.0, 3.0, 3.0]") == 2


@pytest.mark.parametrize(
    ("nproc", "strategy", "parameters", "state"),
    [
        pytest.param(2, "ddp", 1.0, 1.0, id="ddp holds all of both"),
        pytest.param(3, "zero1", 1.0, 0.36, id="zero1 holds a third of the optimizer state"),
        pytest.param(4, "fsdp", 0.27, 0.27, id="fsdp holds a quarter of both"),
    ],
)
def test_memory(
    trained: Callable[..., Path], nproc: int, strategy: str, parameters: float, state: float
) -> None:
    """After an evaluation: between forward and backward the root of an FSDP model, 5 % of it, is gathered."""
    out = trained("--nproc", nproc, "--parallel", strategy)
    whole = sum(p.numel() for p in GPT(SHAPE).parameters())
    lines = [line.split() for line in (out / "memory.txt").read_text().splitlines()]
    assert len(lines) == nproc
    assert max(int(line[1]) for line in lines) <= parameters * whole
    assert max(int(line[2]) for line in lines) <= state * 2 * whole + 100  # Adam keeps two numbers each


# Each layer has running statistics; each rank writes those that it holds after the last step.
STATISTICS = """
import os
import torch
from torch import nn
import dtj

class Net(nn.Sequential):
    def pipeline_plan(self):
        return [(layer, [layer]) for layer in self]

def layer():
    return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))

run = dtj.init(seed=1)
net = Net(layer(), layer())
model = run.parallel(net)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
samples = torch.randn(64, 4, generator=torch.Generator().manual_seed(0)) + 3
data = run.data(torch.utils.data.TensorDataset(samples), global_batch=32)
run.state(model=model, opt=optimizer, data=data)
for batch in run.steps(int(os.environ["STEPS"])):
    run.backward(lambda mb: model(mb[0]).square().mean(), batch)
    optimizer.step()
    optimizer.zero_grad()
torch.save(dict(net.named_buffers()), f"{os.environ['OUT']}/{run.rank}.pt")
"""


@pytest.mark.parametrize(
    ("flags", "holders", "passes"),
    [
        pytest.param(("pp",), {0: "0.", 1: "1."}, 8, id="pp: of each stage"),
        pytest.param(("fsdp",), {0: ""}, 1, id="fsdp: of rank 0"),
    ],
)
def test_running_statistics_are_saved_as_one_rank_has_them(
    finish: Finish, tmp_path: Path, flags: tuple[str, ...], holders: dict[int, str], passes: int
) -> None:
    script = tmp_path / "script.py"
    script.write_text(STATISTICS)
    how = ("run", "--nproc", 2, "--checkpoint", tmp_path / "saved", "--parallel", *flags, script)
    for steps in (2, 4):
        ended = finish(*how, OUT=tmp_path, STEPS=steps)
        assert ended.code == 0, ended.err
        assert "no-op" not in ended.err
        held: dict[str, torch.Tensor] = {}
        for rank, begin in holders.items():
            of_rank = torch.load(tmp_path / f"{rank}.pt")
            held |= {name: of_rank[name] for name in of_rank if name.startswith(begin)}
        assert held["0.1.num_batches_tracked"] == steps * passes
        saved = checkpoints.whole(tmp_path / "saved" / f"step-{steps}")["parts"]["model"]
        torch.testing.assert_close({name: saved[name] for name in held}, held, rtol=0, atol=0)
        assert len(held) == 6
