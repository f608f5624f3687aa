"""--check-every: ranks that should hold the same state are compared bit for bit."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.process.dtj.conftest import PROGRAMS, Finished

Finish = Callable[..., Finished]

DRIFTING = """
import os
import torch
import dtj

run = dtj.init()
model = run.parallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
data = run.data(torch.utils.data.TensorDataset(torch.ones(64, 4)), global_batch=8)
run.state(model=model, optimizer=optimizer, data=data)
for batch in run.steps(8):
    run.backward(lambda mb: model(mb[0]).square().mean(), batch)
    optimizer.step()
    optimizer.zero_grad()
    if run.rank == 1 and run.step == 3:
        weight = next(model.parameters())
        with torch.no_grad():
            changed = weight if os.environ["WHAT"] == "weight" else optimizer.state[weight]["momentum_buffer"]
            changed[0, 2] += 1e-6 * changed[0, 2]
"""


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        pytest.param("weight", "rank 1 differs in model.weight\n", id="a weight"),
        pytest.param(
            "momentum", "rank 1 differs in optimizer's momentum_buffer of model.weight\n", id="momentum"
        ),
    ],
)
def test_rank_that_differs_is_named_at_the_next_check(
    finish: Finish, tmp_path: Path, what: str, expected: str
) -> None:
    script = tmp_path / "script.py"
    script.write_text(DRIFTING)
    ended = finish("run", "--nproc", 3, "--check-every", 2, script, WHAT=what)
    assert ended.code == 1
    assert f"the ranks have different state after step 4: {expected}" in ended.err
    assert "fix: look for code that changes weights on that rank only" in ended.err


def test_ranks_that_shard_their_optimizer_stay_equal(finish: Finish, tmp_path: Path) -> None:
    """Those of the policies of --sync and --compress are compared in test_sync.py."""
    flags = ("--nproc", 2, "--parallel", "zero1", "--check-every", 1)
    ended = finish("run", *flags, PROGRAMS / "gpt.py", OUT=tmp_path)
    assert ended.code == 0, ended.err
