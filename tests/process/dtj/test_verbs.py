"""Verbs of Run that are called incorrectly end with an error of two lines, without a traceback."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.process.dtj.conftest import PROGRAMS, Finished

PROGRAM = """
import torch
import dtj

run = dtj.init(seed=0)
model = run.parallel(torch.nn.Linear(2, 1))
samples = torch.utils.data.TensorDataset(torch.ones(4, 2))
data = run.data(samples, global_batch=4)
run.state(model=model, data=data)
for batch in run.steps(1):
    loss = run.backward(lambda mb: model(mb[0]).mean(), batch)
    run.clip(1.0)
    run.log(loss=loss)
"""


def test_verb_that_is_called_incorrectly_is_explained(
    finish: Callable[..., Finished], tmp_path: Path
) -> None:
    """All verbs raise the same error: tests/unit/dtj/test_run.py."""
    script = tmp_path / "script.py"
    script.write_text(PROGRAM.replace("clip(1.0)", "clip(0.0)"))
    ended = finish("run", "--nproc", 1, script)
    assert (ended.code, "Traceback" in ended.err) == (78, False), ended.err
    assert "run.clip got 0.0, expected a number above 0" in ended.err
    assert "\n  fix: " in ended.err


def test_loop_over_micro_batches_that_is_left_early_is_refused(
    finish: Callable[..., Finished], tmp_path: Path
) -> None:
    """The last micro-batch of a step averages the gradients: without it each rank would train alone."""
    script = tmp_path / "script.py"
    script.write_text(
        PROGRAM[: PROGRAM.index("for batch")] + "for batch in run.steps(2):\n"
        "    for mb in batch:\n"
        "        run.backward(model(mb[0]).mean())\n"
        "        break\n"
    )
    ended = finish("run", "--nproc", 2, "--micro-batch", 1, script)
    assert ended.code == 78, ended.err
    assert "run.backward was called for 1 of 2 micro-batches of a step" in ended.err


@pytest.mark.parametrize(
    ("total", "shown"),
    [("np.int64(2)", 2), ("torch.tensor(2)", 2), ("sys.maxsize", 2**53)],
    ids=["NumPy", "torch", "no limit"],
)
def test_steps_may_be_any_whole_number(
    finish: Callable[..., Finished], tmp_path: Path, total: str, shown: int
) -> None:
    """Log lines and reports contain the total, so it must be a plain int."""
    script = tmp_path / "script.py"
    program = PROGRAM.replace("run.steps(1)", f"run.steps({total})")
    script.write_text(f"import sys, numpy as np\n{program}    if run.step:\n        run.finish()\n")
    ended = finish("run", "--log-every", 1, script)
    assert ended.code == 0, ended.err
    lines = [line.removeprefix("[rank 0] ") for line in ended.out.splitlines()]
    assert [line.split("  ")[0] for line in lines[:2]] == [f"step 1/{shown}", f"step 2/{shown}"]
    assert ("eta" in lines[0]) == (shown == 2)


def test_score_may_be_a_tensor(finish: Callable[..., Finished], tmp_path: Path) -> None:
    """The checkpoint has it as a number: the tensor's device may not exist on the machine that loads it."""
    script = tmp_path / "script.py"
    script.write_text(f"{PROGRAM}    run.keep_best(loss)\n")
    ended = finish("run", "--checkpoint", tmp_path / "run", script)
    assert ended.code == 0, ended.err
    assert type(json.loads((tmp_path / "run" / "best.json").read_text())["score"]) is float


def test_evaluation_has_as_many_samples_at_a_time_as_training(
    finish: Callable[..., Finished], tmp_path: Path
) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        PROGRAM.replace("global_batch=4", "global_batch=2")
        + "run.evaluate(lambda mb: print('scored', len(mb[0])) or mb[0][:, 0], samples)\n"
    )
    runs = ((2, ()), (1, ("--micro-batch", 1)))
    assert [finish("run", *flags, script).out.count(f"scored {n}") for n, flags in runs] == [2, 4]


def test_metric_is_that_of_the_whole_data_set(finish: Callable[..., Finished]) -> None:
    ended = finish("run", "--nproc", 3, PROGRAMS / "metrics.py", imports=["torchmetrics"])
    assert ended.code == 0, ended.err
    assert sorted(re.findall(r"rank (\d) found (.*)", ended.out)) == [(str(n), "1.0") for n in range(3)]


def test_url_that_cannot_be_used_is_refused(finish: Callable[..., Finished], tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(PROGRAM)
    ended = finish("run", "--weights", "s3://bucket/run", script)
    assert ended.code == 78
    assert "Invalid value for '--weights': this must be a local path" in ended.err
    ended = finish("run", script, DTJ_CHECKPOINT_DIR="s4://bucket/run")
    assert ended.code == 78
    assert "s4://bucket/run cannot hold checkpoints: Protocol not known: s4" in ended.err


def test_one_rank_alone_may_log_and_ask_for_a_line(finish: Callable[..., Finished], tmp_path: Path) -> None:
    """Steps are long enough for a message after each: ranks that start different ones would wait for ever."""
    script = tmp_path / "script.py"
    script.write_text(
        PROGRAM.replace("steps(1)", "steps(6)")
        + "    sum(range(4 * 10**6))\n"
        + "    if run.rank == 1:\n        run.log(only=7.0, now=True)\n"
    )
    ended = finish("run", "--nproc", 2, script)
    assert ended.code == 0, ended.err
    assert ended.out.count("only 7.0000") >= 6


def test_ranks_with_other_numbers_of_steps_are_refused(
    finish: Callable[..., Finished], tmp_path: Path
) -> None:
    """Also in a later loop. The ranks would wait for each other until they count as hung."""
    script = tmp_path / "script.py"
    script.write_text(PROGRAM + "for batch in run.steps(4 - run.rank):\n    pass\n")
    ended = finish("run", "--nproc", 2, script)
    assert ended.code == 78, ended.err
    assert "the ranks disagree: the total of run.steps is 4 on rank 0 and 3 on rank 1" in ended.err


THAWING = """
import sys
import torch
from torch.nn.utils import prune
import dtj

run = dtj.init(seed=0)
layers = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 3), torch.nn.Linear(3, 1))
layers[0].requires_grad_(False)
prune.l1_unstructured(layers[1], "weight", 4)
model = run.parallel(layers)
opt = torch.optim.SGD(model.parameters(), 0.1)
calls = []
model.register_forward_hook(lambda *_: calls.append(run.step))
used = run.unwrap(model) if "unwrapped" in sys.argv else model
data = run.data(torch.randn(12, 2), global_batch=4)
run.state(model=model, opt=opt, data=data)
for batch in run.steps(6):
    layers[0].requires_grad_(run.step >= 2)
    layers[1].requires_grad_(run.step < 4)
    run.backward(lambda mb: (used(mb) - 1).square().mean(), batch)
    opt.step()
    opt.zero_grad()
print("weights", [round(float(p.detach().sum()), 5) for p in model.parameters()], "hook", sorted(set(calls)))
"""


COUNTED = """
from dtj.parallel.compress import Hook

compressed, average = [], Hook.average

def counted(self, state, bucket):
    compressed.append(run.step)
    return average(self, state, bucket)

Hook.average = counted
"""


def test_layers_may_be_pruned_before_and_frozen_and_unfrozen_between_steps(
    finish: Callable[..., Finished], tmp_path: Path
) -> None:
    """DDP as torch has it averages the gradients of those layers that were trained when it was made.

    A hook of the user stays.
    """
    script = tmp_path / "script.py"
    script.write_text(THAWING)
    runs = [finish("run", "--nproc", n, "--micro-batch", 1, script) for n in (1, 2)]
    assert [ended.code for ended in runs] == [0, 0], runs[1].err
    found = [
        line.partition("weights ")[2]
        for ended in runs
        for line in ended.out.splitlines()
        if "weights" in line
    ]
    assert (len(found), len(set(found))) == (3, 1)
    assert found[0].endswith("hook [0, 1, 2, 3, 4, 5]")


def test_gradients_are_compressed_also_in_a_step_that_unfreezes_layers(
    finish: Callable[..., Finished], tmp_path: Path
) -> None:
    script = tmp_path / "script.py"
    script.write_text(COUNTED + THAWING + "print('compressed in', sorted(set(compressed)))\n")
    ended = finish("run", "--nproc", 2, "--compress", "bf16", script)
    assert ended.code == 0, ended.err
    assert ended.out.count("compressed in [0, 1, 2, 3, 4, 5]") == 2


def test_model_that_is_not_called_through_its_wrapper_is_refused(
    finish: Callable[..., Finished], tmp_path: Path
) -> None:
    """Each rank would train alone."""
    script = tmp_path / "script.py"
    script.write_text(THAWING)
    ended = finish("run", "--nproc", 2, script, "unwrapped")
    assert ended.code == 78, ended.err
    assert "run.backward got a loss of a model that was not called since the last one" in ended.err
