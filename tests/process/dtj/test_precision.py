"""Half precision, and losses that are not finite."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.process.dtj.conftest import PROGRAMS, Finished
from tests.process.dtj.test_strategies import STEPS, by_hand, train
from tests.support import checkpoints

Finish = Callable[..., Finished]


@pytest.mark.parametrize(
    "flags",
    [
        pytest.param(("--precision", "bf16"), id="bf16"),
        pytest.param(("--precision", "fp16"), id="fp16"),
        pytest.param(("--nproc", 2, "--precision", "fp16"), id="fp16, two ranks"),
        pytest.param(("--nproc", 2, "--precision", "bf16", "--parallel", "fsdp"), id="bf16 shards"),
        pytest.param(("--nproc", 2, "--precision", "bf16", "--parallel", "pp"), id="bf16 stages"),
    ],
)
def test_half_precision_follows_float32_and_saves_float32_weights_and_the_loss_scale(
    finish: Finish, tmp_path: Path, flags: tuple[object, ...]
) -> None:
    expected, _ = by_hand(STEPS)
    losses = train(finish, tmp_path / "out", *flags)
    assert losses == pytest.approx(expected, rel=1e-3)
    assert losses != pytest.approx(expected, rel=1e-7), "it computed in float32"
    saved = checkpoints.whole(tmp_path / "out" / "run" / f"step-{STEPS}")
    assert {weight.dtype for weight in saved["parts"]["model"].values()} == {torch.float32}
    scale = {"precision": {"scale": 65536.0, "good_steps": STEPS, "skip": []}}
    assert saved["extras"] == (scale if "fp16" in flags else {})


TWO_PASSES = """
import torch
import dtj

run = dtj.init()
model = run.parallel(torch.nn.Linear(2, 1))
run.data(torch.utils.data.TensorDataset(torch.ones(8, 2)), global_batch=8)
optimizer = torch.optim.SGD(model.parameters())
run.state(optimizer=optimizer)
for batch in run.steps(2):
    for share in ((0.25, 0.5), (1000, 0.5))[run.step]:
        run.backward(lambda mb: share * model(mb[0]).float().mean(), batch)
    if run.rank == 0:
        gradient = next(model.parameters()).grad
        print(gradient if gradient is None else gradient.tolist())
    optimizer.zero_grad()
"""


@pytest.mark.parametrize("flags", [(), ("--nproc", 2), ("--nproc", 2, "--parallel", "zero1")], ids=str)
def test_second_pass_of_a_step_adds_to_the_first_unless_one_overflowed(
    finish: Finish, tmp_path: Path, flags: tuple[object, ...]
) -> None:
    script = tmp_path / "script.py"
    script.write_text(TWO_PASSES)
    ended = finish("run", "--precision", "fp16", *flags, script)
    assert ended.code == 0, ended.err
    assert "[[0.75, 0.75]]" in ended.out
    assert "None" in ended.out


def test_loss_that_is_not_finite_stops_all_ranks_before_the_next_checkpoint(
    finish: Finish, tmp_path: Path
) -> None:
    ended = finish(
        *("run", "--nproc", 3, "--save-every", 2, "--checkpoint", tmp_path / "run", PROGRAMS / "gpt.py"),
        OUT=tmp_path,
        BREAK_AT=5,
        BREAK_RANK=1,
    )
    assert ended.code == 1
    assert "the loss of step 5 is not finite on rank 1; the newest checkpoint is of step 4" in ended.err
    assert "fix: lower the learning rate" in ended.err
    assert [(tmp_path / f"ended-{rank}").read_text() for rank in range(3)] == ["6"] * 3
    assert sorted(p.name for p in (tmp_path / "run").glob("step-*")) == ["step-2", "step-4"]


def test_loss_that_is_not_finite_is_noticed_without_any_checkpoint(finish: Finish, tmp_path: Path) -> None:
    ended = finish("run", "--nproc", 2, PROGRAMS / "gpt.py", OUT=tmp_path, STEPS=100_000, BREAK_AT=7)
    assert ended.code == 1
    assert "the loss of step 7 is not finite on rank 0; nothing was saved" in ended.err
    first, second = ((tmp_path / f"ended-{rank}").read_text() for rank in range(2))
    assert 7 <= int(first) == int(second) < 100_000


@pytest.mark.parametrize(("flags", "expected"), [((), "highest"), (("--tf32",), "high")], ids=["no", "yes"])
def test_tf32_is_off_unless_the_flag_is_set(
    finish: Finish, tmp_path: Path, flags: tuple[str, ...], expected: str
) -> None:
    script = tmp_path / "script.py"
    script.write_text("import dtj, torch; dtj.init(); print(torch.get_float32_matmul_precision())")
    assert finish("run", *flags, script).out == f"[rank 0] {expected}\n"
