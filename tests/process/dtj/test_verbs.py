"""Verbs of Run that are called incorrectly end with an error of two lines, without a traceback."""

import re
from collections.abc import Callable
from pathlib import Path

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


def test_metric_is_that_of_the_whole_data_set(finish: Callable[..., Finished]) -> None:
    ended = finish("run", "--nproc", 3, PROGRAMS / "metrics.py", imports=["torchmetrics"])
    assert ended.code == 0, ended.err
    assert sorted(re.findall(r"rank (\d) found (.*)", ended.out)) == [(str(n), "1.0") for n in range(3)]


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
