"""A run that was interrupted and resumed ends with the same state as an uninterrupted one, bit for bit."""

import json
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.process.dtj.conftest import PROGRAMS, Command, Finished, free_port, wait_for
from tests.process.dtj.test_same_result import seen

Finish = Callable[..., Finished]
SMALL = PROGRAMS / "small.py"


def weights(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = torch.load(out / "weights.pt")
    return found


def assert_identical(a: dict[str, Any], b: dict[str, Any]) -> None:
    """Weights, batch statistics and momenta, bit for bit."""
    for name, value in a["model"].items():
        assert torch.equal(value, b["model"][name]), name
    for number, state in a["optimizer"]["state"].items():
        assert torch.equal(state["momentum_buffer"], b["optimizer"]["state"][number]["momentum_buffer"])


@pytest.mark.parametrize("nproc", [1, 2, 3])
def test_resumed_run_is_bit_identical(finish: Finish, tmp_path: Path, nproc: int) -> None:
    """With dropout and batch norm, so random generators and buffers are tested too."""
    whole, broken, saved = tmp_path / "whole", tmp_path / "broken", tmp_path / "saved"
    whole.mkdir()
    broken.mkdir()
    assert finish("run", "--nproc", nproc, SMALL, OUT=whole, SAMPLES=96).code == 0
    flags = ("run", "--nproc", nproc, "--checkpoint", saved, "--save-every", 5, SMALL)
    first = finish(*flags, OUT=broken, SAMPLES=96, FAIL_AT=12)
    assert first.code == 1
    second = finish(*flags, OUT=broken, SAMPLES=96)
    assert second.code == 0
    assert "resuming from" in second.err
    assert_identical(weights(whole), weights(broken))


def test_another_world_size_continues_at_the_same_sample(finish: Finish, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    saved = tmp_path / "saved"
    stopped = finish("run", "--nproc", 2, "--checkpoint", saved, SMALL, OUT=first, STEPS=5, PLAIN=1)
    assert stopped.code == 0
    resumed = finish("run", "--nproc", 3, "--checkpoint", saved, SMALL, OUT=second, STEPS=9, PLAIN=1)
    assert resumed.code == 0
    epoch = [i for s in range(5) for i in seen(first, s)] + [i for s in range(5, 9) for i in seen(second, s)]
    assert sorted(epoch) == list(range(98))


def test_pod_that_is_evicted_stops_all_at_one_step_with_a_checkpoint(
    start: Callable[..., Command], tmp_path: Path
) -> None:
    """Two agents with one rank each."""
    port = free_port()
    job = {"DTJ_JOB": "digits", "DTJ_JOB_UID": "0b5c", "DTJ_MAX_RESTARTS": 5}
    nodes = [
        start(
            *(
                "run",
                "--checkpoint",
                tmp_path / "saved",
                "--termination-log",
                tmp_path / f"log-{node}",
                SMALL,
            ),
            OUT=tmp_path,
            STEPS=100_000,
            PLAIN=1,
            READY_AT=10,
            NNODES=2,
            NODE_RANK=node,
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=port,
            **job,
        )
        for node in range(2)
    ]
    wait_for((tmp_path / "ready").exists, "step 10")
    nodes[1].signal(signal.SIGTERM)
    ended = [node.wait() for node in nodes]
    assert [e.code for e in ended] == [75, 75], [e.err for e in ended]
    logs = [json.loads((tmp_path / f"log-{node}").read_text()) for node in range(2)]
    assert [log["reason"] for log in logs] == ["Stopped", "Stopped"]
    assert logs[0]["step"] == logs[1]["step"] >= 10
    assert logs[0]["checkpoint"] == str(tmp_path / "saved" / f"step-{logs[0]['step']}")
    assert [*(tmp_path / "saved").glob("step-*/state.pt")] == [Path(logs[0]["checkpoint"], "state.pt")]


def test_sigterm_without_a_checkpoint_folder_does_not_claim_one(
    start: Callable[..., Command], tmp_path: Path
) -> None:
    command = start("run", "--nproc", 2, SMALL, OUT=tmp_path, STEPS=100_000, PLAIN=1, READY_AT=3)
    wait_for((tmp_path / "ready").exists, "step 3")
    command.signal(signal.SIGTERM)
    ended = command.wait()
    assert ended.code == 128 + signal.SIGTERM
    assert "nothing was saved" in ended.err


def test_warning_that_nothing_is_saved_is_printed_once(finish: Finish, tmp_path: Path) -> None:
    ended = finish("run", "--nproc", 2, SMALL, OUT=tmp_path, STEPS=2)
    assert ended.err.count("in memory only") == 1


def test_earlier_run_is_read_and_never_written(finish: Finish, tmp_path: Path) -> None:
    monday, tuesday = tmp_path / "runs" / "0123abcd", tmp_path / "tuesday"
    assert finish("run", "--checkpoint", monday, SMALL, OUT=tmp_path, STEPS=4).code == 0
    before = sorted(tmp_path.glob("runs/**/*"))
    ended = finish(
        "run", "--checkpoint", tuesday, "--resume", tmp_path / "runs", SMALL, OUT=tmp_path, STEPS=6
    )
    assert ended.code == 0
    assert f"resuming from {monday / 'step-4'}" in ended.err
    assert sorted(tmp_path.glob("runs/**/*")) == before
    assert [p.name for p in tuesday.glob("step-*")] == ["step-6"]


def test_finished_run_that_is_started_again_says_how_to_train_further(finish: Finish, tmp_path: Path) -> None:
    saved, later = tmp_path / "saved", tmp_path / "later"
    flags = ("run", "--nproc", 2, "--checkpoint", saved, SMALL)
    first = finish(*flags, OUT=tmp_path, STEPS=4)
    assert (first.code, "nothing left to train" in first.err) == (0, False)
    again = finish(*flags, OUT=tmp_path, STEPS=4)
    assert again.code == 0
    left = f"nothing left to train in this loop: {saved / 'step-4'} is at step 4, run.steps ends at 4"
    assert again.err.count(left) == 1
    assert "  to train further: ask for more steps" in again.err
    assert "The learning rate stays that of the checkpoint, and so does the total of a schedule" in again.err
    assert "  to start from step 0: use another --checkpoint folder" in again.err
    of_earlier = finish("run", "--checkpoint", later, "--resume", saved, SMALL, OUT=tmp_path, STEPS=3)
    assert of_earlier.code == 0
    assert f"{saved / 'step-4'} is at step 4, run.steps ends at 3" in of_earlier.err
    assert "  to start from step 0: omit --resume" in of_earlier.err
    assert "nothing left to train" not in finish(*flags, OUT=tmp_path, STEPS=6).err


def test_resuming_from_a_missing_run_exits_78(finish: Finish, tmp_path: Path) -> None:
    ended = finish("run", "--nproc", 2, "--resume", tmp_path / "tpyo", SMALL, OUT=tmp_path)
    assert ended.code == 78
    assert ended.err.count("there is no readable checkpoint to resume from") == 1
    assert "Traceback" not in ended.err


def test_truncated_checkpoint_is_skipped_and_the_previous_one_is_used(finish: Finish, tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    flags = ("run", "--nproc", 2, "--checkpoint", saved, "--save-every", 2, SMALL)
    assert finish(*flags, OUT=tmp_path, STEPS=4).code == 0
    torn = saved / "step-4" / "state.pt"
    torn.write_bytes(torn.read_bytes()[:-100])
    ended = finish(*flags, OUT=tmp_path, STEPS=6)
    assert ended.code == 0, ended.err
    assert f"checkpoint {saved / 'step-4'} is unreadable and was skipped" in ended.err
    assert f"resuming from {saved / 'step-2'}" in ended.err
    assert sorted(p.name for p in saved.glob("step-*")) == ["step-4", "step-6"]


def test_disk_error_in_the_last_save_is_reported(finish: Finish, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    ended = finish("run", "--checkpoint", tmp_path / "file" / "run", SMALL, OUT=tmp_path, STEPS=2)
    assert ended.code == 1
    assert "could not be written: Not a directory" in ended.err
    assert "Traceback" not in ended.err


LARGE = """
import torch, dtj
from dtj.ranks import exchange

shared = exchange.share_state
def fail(*_, **__):
    raise AssertionError("every rank sees the file")
exchange.share_state = fail if SEES else shared
encode = exchange._encode
def small(value, device):
    found = encode(value, device)
    assert len(found) < 100_000
    return found
exchange._encode = small

run = dtj.init()
model = run.parallel(torch.nn.Linear(1000, 100))
opt = torch.optim.Adam(model.parameters())
data = run.data(torch.ones(8, 1000), global_batch=2)
run.state(model=model, opt=opt, data=data)
for batch in run.steps(run.step + 2):
    run.backward(lambda mb: model(mb).mean(), batch)
    opt.step()
    opt.zero_grad()
moments = [float(state["exp_avg"].sum()) for state in opt.state.values()]
print("sum", run.rank, run.step, float(run.unwrap(model).weight.sum()), moments)
"""


HIDE = """
import os
from dtj.checkpoint import reader

if os.environ["RANK"] == "1":
    reader.fingerprint = lambda folder: None
"""


@pytest.mark.parametrize("sees", [True, False])
def test_each_rank_reads_the_checkpoint_if_it_sees_it(finish: Finish, tmp_path: Path, sees: bool) -> None:
    """No rank sends the state; to a rank that does not see the file rank 0 sends it, tensor by tensor."""
    program = tmp_path / "program.py"
    program.write_text(f"SEES = {sees}\n" + LARGE)
    if not sees:
        program.write_text(HIDE + program.read_text())
    run = ("run", "--nproc", 2, "--checkpoint", tmp_path / "run", program)
    assert finish(*run).code == 0
    ended = finish(*run)
    assert ended.code == 0, ended.err
    first, second = re.findall(r"sum \d 4 (.*)", ended.out)
    assert first == second


TOGETHER = """
import os, pathlib, time
from dtj.checkpoint import reader

out = pathlib.Path(os.environ["OUT"])
read, load, loaded = reader.read, reader.load, out / "loaded-by-rank-1"

def late(folder):
    deadline = time.monotonic() + 200
    while not loaded.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    if not loaded.exists():  # an exception would mean a damaged checkpoint
        os._exit(3)
    return read(folder)

def noted(folder, **how):
    found = load(folder, **how)
    loaded.touch()
    return found

if os.environ["RANK"] == "0":
    reader.read = late
else:
    reader.load = noted
"""


def test_ranks_read_the_checkpoint_at_the_same_time(finish: Finish, tmp_path: Path) -> None:
    """Rank 0 also checks its checksums, which must not keep the others waiting."""
    (program := tmp_path / "program.py").write_text("SEES = True\n" + LARGE)
    run = ("run", "--nproc", 2, "--checkpoint", tmp_path / "run", program)
    assert finish(*run).code == 0
    program.write_text(TOGETHER + program.read_text())
    ended = finish(*run, OUT=tmp_path)
    assert ended.code == 0, ended.err
    assert len(re.findall(r"sum \d 4 ", ended.out)) == 2


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_resume_needs_half_as_much_memory_as_the_state_beside_it(
    finish: Finish, tmp_path: Path, strategy: str
) -> None:
    """The weights are in memory already when a rank reads them and the optimizer's state."""
    flags = ("--nproc", 2, "--parallel", strategy, "--checkpoint", tmp_path / "run")
    assert finish("run", *flags, PROGRAMS / "state.py").code == 0
    ended = finish("run", *flags, PROGRAMS / "state.py")
    assert ended.code == 0, ended.err
    found = [line.split()[-2:] for line in ended.out.splitlines() if "memory" in line]
    assert len(found) == 2
    for state, needed in found:
        assert int(state) > 75e6
        assert int(needed) <= 1.5 * int(state) + 8e6, (state, needed)
