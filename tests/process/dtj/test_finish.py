"""`run.finish`: training that ends before its last step."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.process.dtj.conftest import PROGRAMS, Finished

Finish = Callable[..., Finished]
SMALL = PROGRAMS / "small.py"


@pytest.mark.parametrize(
    ("nproc", "faults"),
    [
        pytest.param(1, "", id="one rank"),
        pytest.param(3, "", id="one of three ranks"),
        pytest.param(3, "0@6:end:SIGKILL", id="another rank dies in that step"),
    ],
)
def test_finish_on_one_rank_ends_all_after_the_same_step_with_a_checkpoint(
    finish: Finish, tmp_path: Path, nproc: int, faults: str
) -> None:
    saved = tmp_path / "saved"
    flags = (
        "run",
        "--nproc",
        nproc,
        "--max-restarts",
        3,
        "--checkpoint",
        saved,
        "--save-every",
        10**6,
        SMALL,
    )
    ended = finish(*flags, OUT=tmp_path, STEPS=10**6, PLAIN=1, FINISH_AT=6, FAULTS=faults)
    assert ended.code == 0, ended.err
    (folder,) = saved.glob("step-*")
    step = int(folder.name.removeprefix("step-"))
    assert step >= 7
    assert ended.err.count(f"finished at step {step} of 1000000: the program called run.finish") == 1
    last = [list((tmp_path / f"seen-{rank}.txt").read_text().splitlines())[-1] for rank in range(nproc)]
    assert [int(line.split()[0]) for line in last] == [step - 1] * nproc


def test_finish_in_the_last_step_takes_effect(finish: Finish, tmp_path: Path) -> None:
    """It must not depend on how long steps take."""
    ended = finish("run", "--nproc", 2, SMALL, OUT=tmp_path, STEPS=7, PLAIN=1, FINISH_AT=6)
    assert ended.code == 0, ended.err
    assert "finished at step 7 of 7: the program called run.finish" in ended.err


DIES_IN_ITS_LAST_SAVE = """
import os
import signal
from pathlib import Path

import torch

import dtj

run = dtj.init()
model = run.parallel(torch.nn.Linear(2, 1))
data = run.data(torch.utils.data.TensorDataset(torch.ones(4, 2)), global_batch=4)
fault = Path(os.environ["OUT"], "fault")


class Fatal:
    def state_dict(self):
        if run.rank == 0 and run.step > 6 and not fault.exists():
            fault.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return {}

    def load_state_dict(self, state):
        pass


run.state(model=model, data=data, fatal=Fatal())
total = int(os.environ["TOTAL"])
for batch in run.steps(total):
    run.backward(lambda mb: model(mb[0]).mean(), batch)
    if run.step >= 6 and total > 8:
        run.finish()
score = run.evaluate(lambda mb: model(mb[0])[:, 0], torch.utils.data.TensorDataset(torch.ones(4, 2)))
"""


@pytest.mark.parametrize("total", [8, 10**6], ids=["as planned", "early"])
def test_last_checkpoint_is_written_if_rank_0_is_lost_during_the_save(
    finish: Finish, tmp_path: Path, total: int
) -> None:
    """The other ranks have done the last step; its replacement learns from them that no step follows."""
    saved, script = tmp_path / "saved", tmp_path / "script.py"
    script.write_text(DIES_IN_ITS_LAST_SAVE)
    flags = ("run", "--nproc", 2, "--max-restarts", 1, "--checkpoint", saved, "--save-every", 10**6, script)
    ended = finish(*flags, OUT=tmp_path, TOTAL=total)
    assert ended.code == 0, ended.err
    assert (tmp_path / "fault").exists()
    (folder,) = saved.glob("step-*")
    step = int(folder.name.removeprefix("step-"))
    assert step == total if total == 8 else step > 6
    said = f"finished at step {step} of {total}: the program called run.finish"
    assert ended.err.count(said) == (0 if total == 8 else 2), "by the lost rank and by its replacement"
