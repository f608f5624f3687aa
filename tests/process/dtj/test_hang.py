"""Ranks that hang: found by default, the right rank named, and no false alarms."""

import json
import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from dtj.data import order
from tests.process.dtj.conftest import PROGRAMS, SIZES, SMALL, Command, Finished, free_port, wait_for
from tests.process.dtj.test_resume import assert_identical, weights
from tests.process.dtj.test_status_server import status

# Rank 1 polls for a file, gets a byte now and then, or waits for a script; then the ranks meet.
WAITS_FOR_THE_WORLD = """
import os, pathlib, socket, subprocess, threading, time
import torch.distributed as dist

def look():
    for _ in range(20):
        pathlib.Path("there-is-none").exists()
        time.sleep(0.5)

def trickle():
    ours, theirs = socket.socketpair()
    def send():
        for _ in range(20):
            time.sleep(0.5)
            theirs.sendall(b".")
        theirs.close()
    threading.Thread(target=send).start()
    while ours.recv(1):
        pass

def run_child():
    subprocess.run(["sh", "-c", "for i in $(seq 20); do sleep 0.5; done"], check=True)

way = os.environ["WAY"]
if os.environ["RANK"] == "1":
    {"looks": look, "trickles": trickle, "child": run_child}[way]()
dist.init_process_group("gloo")
dist.barrier()
print("done", way, flush=True)
dist.destroy_process_group()
"""
# One thread of each group wakes up a hundred times a second, also while nothing is sent. Another thread is a
# sampler of metrics.
HANGS_IN_GROUPS = """
import os, pathlib, threading, time
import torch.distributed as dist

def sample():
    while True:
        pathlib.Path(os.devnull).write_text(pathlib.Path("/proc/stat").read_text())
        time.sleep(0.5)

threading.Thread(target=sample, daemon=True).start()
dist.init_process_group("gloo")
groups = [dist.new_group(backend="gloo") for _ in range(5)]
dist.barrier()
if os.environ["RANK"] == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    time.sleep(100_000)
dist.barrier()
print("done", flush=True)
dist.destroy_process_group()
"""
# The limits here are so short that a busy machine may exceed them; the job heals from that, too.
RESTARTS = 5
# The limit of a rank's first three steps is ten times as long; the agent sees more than these before a fault.
STEP_S = 0.05
Finish = Callable[..., Finished]
Start = Callable[..., Command]
FIRST_SAMPLE = int(order.shuffled(np.zeros(1, np.int64), n=SIZES["SAMPLES"], seed=3, epoch=0)[0])


@pytest.mark.parametrize(
    ("fault", "where"),
    [
        pytest.param("1@7:forward:SIGSTOP", r"is stopped \(by SIGSTOP or a debugger\)", id="stopped"),
        pytest.param("1@7:end:sleep", r"is in .*small\.py:\d+ in fail", id="asleep before a collective"),
        pytest.param("1@7:forward:loop", r"is in .*small\.py:\d+ in fail", id="in an endless loop"),
        pytest.param("0@7:end:sleep", r"is in .*small\.py:\d+ in fail", id="rank 0"),
    ],
)
def test_hung_rank_is_named_killed_and_restarted(
    finish: Finish, tmp_path: Path, unbroken: Callable[..., Path], fault: str, where: str
) -> None:
    flags = ("run", "--nproc", 3, "--max-restarts", RESTARTS, SMALL)
    limits = {"DTJ_HANG_SECONDS": 2, "DTJ_HANG_WORKING_SECONDS": 3, "STEP_S": STEP_S}
    ended = finish(*flags, OUT=tmp_path, FAULTS=fault, PLAIN=1, **limits, **SIZES)
    assert ended.code == 0, ended.err
    rank = fault[0]
    assert re.search(rf"dtj: rank {rank} failed: no step for \d+ s: rank {rank} {where}", ended.err)
    for other in {"0", "1", "2"} - {rank}:  # the stacks of all ranks are in the log
        assert re.search(rf"\[rank {other}\]   File .* in ", ended.err)
    assert_identical(weights(unbroken(3, PLAIN=1)), weights(tmp_path))


@pytest.mark.parametrize(
    ("env", "where"),
    [
        pytest.param(
            {"FAULTS": "1@0:start:SIGSTOP", "DTJ_HANG_SECONDS": 2},
            r"rank 1 is stopped \(by SIGSTOP or a debugger\)",
            id="stopped",
        ),
        pytest.param(
            {"FAULTS": "1@0:start:sleep", "DTJ_HANG_SECONDS": 0.5},
            r"rank 1 is in .*small\.py:\d+ in fail",
            id="asleep before the ranks meet",
        ),
        pytest.param(
            {"STUCK_AT": FIRST_SAMPLE, "DTJ_HANG_SECONDS": 0.5},
            r"rank \d is in .*dataloader\.py:\d+ in",
            id="the first samples do not arrive",
        ),
    ],
)
def test_rank_without_activity_before_the_first_step_is_named_killed_and_restarted(
    finish: Finish, tmp_path: Path, unbroken: Callable[..., Path], env: dict[str, object], where: str
) -> None:
    flags = ("run", "--nproc", 2, "--workers", 1, "--max-restarts", RESTARTS, SMALL)
    ended = finish(*flags, OUT=tmp_path, PLAIN=1, **env, **SIZES)
    assert ended.code == 0, ended.err
    assert re.search(rf"failed: no step yet and no activity for \d+ s: {where}", ended.err)
    assert_identical(weights(unbroken(2, PLAIN=1)), weights(tmp_path))


def test_threads_of_libraries_do_not_hide_a_hang_before_the_first_step(
    finish: Finish, tmp_path: Path
) -> None:
    script = tmp_path / "script.py"
    script.write_text(HANGS_IN_GROUPS)
    ended = finish("run", "--nproc", 2, "--max-restarts", RESTARTS, script, DTJ_HANG_SECONDS=1)
    assert ended.code == 0, ended.err
    named = rf"rank 1 failed: no step yet and no activity for \d+ s: rank 1 is in {script}:\d+ in <module>"
    assert re.search(named, ended.err)


def test_data_workers_that_stop_after_some_steps_are_found(finish: Finish, tmp_path: Path) -> None:
    late = int(order.shuffled(np.arange(96), n=SIZES["SAMPLES"], seed=3, epoch=0)[-1])
    flags = ("run", "--nproc", 2, "--workers", 1, "--max-restarts", RESTARTS, SMALL)
    ended = finish(*flags, OUT=tmp_path, PLAIN=1, STUCK_AT=late, DTJ_HANG_SECONDS=2, **SIZES)
    assert ended.code == 0, ended.err
    assert re.search(r"rank \d failed: no step for \d+ s: rank \d is in .*dataloader\.py:\d+ in", ended.err)


def test_rank_that_waits_for_something_outside_before_its_first_step_is_not_hung(
    start: Start, tmp_path: Path
) -> None:
    """For longer than a start without activity may take, while the other rank waits for it.

    That is by default ten times $DTJ_HANG_SECONDS, within which a rank has to end once the other has ended.
    """
    script = tmp_path / "script.py"
    script.write_text(WAITS_FOR_THE_WORLD)
    limits = {"changed": {"dtj.agent.coordinator.watch.hang.STARTUP_TIMES": 1.0}, "DTJ_HANG_SECONDS": 7}
    found = {
        way: start("run", "--nproc", 2, script, **limits, WAY=way, OUT=tmp_path)
        for way in ("looks", "trickles", "child")
    }
    for way, command in found.items():
        ended = command.wait()
        assert (ended.code, ended.out.count(f"done {way}")) == (0, 2), ended.err
        assert "follow" not in ended.err


def test_hang_that_is_only_reported_restarts_no_rank(start: Start, tmp_path: Path) -> None:
    port = free_port()
    env = {"OUT": tmp_path, "PLAIN": 1, "STEPS": 100_000, "READY_AT": 20, "DTJ_HANG_SECONDS": 5}
    command = start("run", "--nproc", 2, "--port", port, SMALL, DTJ_HANG_ACTION="Report", **env)
    wait_for((tmp_path / "ready").exists, "step 20")
    wait_for(lambda: len(status(port).get("ranks", ())) == 2, "both ranks in the status")
    pid = status(port)["ranks"][1]["pid"]
    os.kill(pid, signal.SIGSTOP)
    wait_for(lambda: status(port).get("hang"), "the hang to be named")
    assert status(port)["hang"]["ranks"] == [1]
    assert "rank 1 is stopped (by SIGSTOP or a debugger)" in status(port)["hang"]["message"]
    os.kill(pid, signal.SIGCONT)
    wait_for(lambda: (found := status(port)) and found["hang"] is None, "the end of the hang")
    assert (status(port)["generation"], status(port)["failure"]) == (1, None)
    command.signal(signal.SIGTERM)
    err = command.wait().err
    assert re.search(r"\[rank 0\]   File .* in ", err)
    assert err.count("not restarting any rank") == 1


def test_hang_without_a_restart_left_is_the_reason_in_the_termination_message(
    finish: Finish, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    flags = ("run", "--nproc", 2, "--termination-log", log, SMALL)
    limits = {"DTJ_HANG_SECONDS": 2, "STEP_S": STEP_S}
    ended = finish(*flags, OUT=tmp_path, FAULTS="1@7:end:sleep", PLAIN=1, **limits, **SIZES)
    assert ended.code == 128 + signal.SIGKILL
    fields = json.loads(log.read_text())
    assert (fields["reason"], fields["rank"]) == ("Hang", 1)
    assert re.search(r"rank 1 is in .*small\.py:\d+ in fail", fields["message"])


def test_plain_script_that_evaluates_for_longer_than_the_limit_is_left_alone(
    start: Start, tmp_path: Path
) -> None:
    env = {"WAY": "evaluate", "OUT": tmp_path, "DTJ_HANG_SECONDS": 2}
    command = start("run", "--nproc", 2, PROGRAMS / "silent.py", **env)
    said = re.compile(r"dtj: no step for \d+ s: rank \d is in .*silent\.py:\d+ in evaluate and uses CPU")
    wait_for(lambda: said.search(command.err), "the evaluation to be noticed")
    (tmp_path / "go").touch()
    ended = command.wait()
    assert (ended.code, ended.out.count("done in life 0")) == (0, 2), ended.err
    assert "dtj: the ranks continue after" in ended.err


def test_rank_that_the_hosts_of_accelerators_wait_for_is_named(finish: Finish) -> None:
    """Most hosts stand at one line of the user's code, where they read the device."""
    flags = ("run", "--nproc", 3, "--max-restarts", 1, PROGRAMS / "silent.py")
    ended = finish(*flags, WAY="one elsewhere", DTJ_HANG_SECONDS=2)
    assert ended.code == 0, ended.err
    assert re.search(r"rank 1 failed: no step for \d+ s: rank 1 is in .* in wait_elsewhere", ended.err)
    assert not re.search(r"rank [02] failed", ended.err)


def test_hang_in_which_all_ranks_stand_alike_is_blamed_on_no_rank(finish: Finish, tmp_path: Path) -> None:
    log, limits = tmp_path / "log", {"DTJ_HANG_SECONDS": 2, "DTJ_HANG_WORKING_SECONDS": 3}
    flags = ("run", "--nproc", 2, "--termination-log", log, PROGRAMS / "silent.py")
    ended = finish(*flags, WAY="all alike", **limits)
    assert ended.code != 0
    fields = json.loads(log.read_text())
    assert fields["reason"] == "PeerLost"
    assert "all ranks wait for each other, so no rank is to blame" in fields["message"]
    assert "no rank is to blame" in ended.err


@pytest.mark.parametrize(
    ("env", "where"),
    [
        pytest.param({"PAUSE_AT": 9, "PAUSE_S": 600, "PAUSE_AT_MOST_S": 2}, "in main", id="pause"),
        pytest.param({"STALLED_SAVE_S": 2}, "in state_dict", id="save"),
    ],
)
def test_stall_within_a_declared_pause_or_a_save_is_found(
    finish: Finish, tmp_path: Path, env: dict[str, object], where: str
) -> None:
    flags = ("run", "--nproc", 2, "--checkpoint", tmp_path / "saved", "--save-every", 9, SMALL)
    ended = finish(*flags, OUT=tmp_path, PLAIN=1, DTJ_HANG_SECONDS=1, **env, **SIZES)
    assert ended.code != 0
    said = (
        rf"rank 0 failed: no step for \d+ s: rank 0 is in .*small\.py:\d+ {where}; the pause that it declared"
    )
    assert re.search(said, ended.err), ended.err


def test_hung_plain_script_is_restarted(finish: Finish, tmp_path: Path) -> None:
    flags = ("run", "--nproc", 2, "--max-restarts", 1)
    ended = finish(*flags, PROGRAMS / "optimizes.py", OUT=tmp_path, DTJ_HANG_SECONDS=2)
    assert ended.code == 0, ended.err
    assert re.search(r"rank 1 failed: no step for \d+ s: rank 1 is in .*optimizes\.py:\d+ in ", ended.err)
    assert ended.out.count("done in life 1") == 2


def test_long_evaluation_and_declared_pause_are_not_hangs(finish: Finish, tmp_path: Path) -> None:
    """Each lasts for longer than it takes to notice a hang, which is twice as long as a step may take."""
    flags = ("run", "--nproc", 2, "--max-restarts", 0, SMALL)
    env = {"EVALUATE_EVERY": 10, "EVALUATE_S": 0.17, "PAUSE_AT": 10, "PAUSE_S": 8}  # 48 samples a rank
    ended = finish(*flags, OUT=tmp_path, PLAIN=1, DTJ_HANG_SECONDS=2, **env, **SIZES)
    assert ended.code == 0, ended.err
    # Ranks that wake up are left alone for long, so the evaluation must not even be noticed.
    assert not re.search(r"no step for \d+ s: rank \d is in .* in score", ended.err)


def test_work_after_the_last_step_is_not_a_hang(finish: Finish, tmp_path: Path) -> None:
    """Writing a sample or exporting the model takes longer than it takes to notice a hang."""
    flags = ("run", "--nproc", 2, "--max-restarts", 0, SMALL)
    ended = finish(*flags, OUT=tmp_path, PLAIN=1, DTJ_HANG_SECONDS=2, AFTERWARDS_S=8, **SIZES)
    assert ended.code == 0, ended.err


def test_rank_that_alone_leaves_the_loop_is_the_culprit(finish: Finish, tmp_path: Path) -> None:
    """The others wait for it: leaving by a `break` does not excuse it."""
    flags = ("run", "--nproc", 2, "--max-restarts", 0, SMALL)
    sizes = SIZES | {"STEPS": 100_000}
    ended = finish(*flags, OUT=tmp_path, PLAIN=1, DTJ_HANG_SECONDS=2, BREAK_AT=9, AFTERWARDS_S=1000, **sizes)
    assert ended.code != 0
    assert f"rank 0 is in {SMALL}:" in ended.err, ended.err


CHATTY = """
import os, pathlib, sys, torch
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(400):
    model(torch.ones(1)).backward()
    optimizer.step()
    pathlib.Path(sys.argv[1], os.environ["RANK"]).write_text(str(step))
    print("x" * 2000, flush=True)
"""


def test_slow_reader_of_the_log_does_not_cause_a_hang(start: Start, tmp_path: Path) -> None:
    """The ranks wait in print, and the agent with them; all continue once the output is read again."""
    script, steps, log = tmp_path / "chatty.py", tmp_path / "steps", tmp_path / "log"
    script.write_text(CHATTY)
    steps.mkdir()
    os.mkfifo(log)
    with open(os.open(log, os.O_RDONLY | os.O_NONBLOCK)) as reader:  # noqa: PTH123 - waits for no writer
        command = start("run", "--nproc", 2, script, steps, out=log, DTJ_HANG_SECONDS=1)

        def is_stuck_for_long() -> bool:  # not only slow at its start, as on a busy machine
            times = [file.stat().st_mtime for file in steps.iterdir() if int(file.read_text() or 0) > 20]
            return len(times) == 2 and time.time() - max(times) > 2.5

        wait_for(is_stuck_for_long, "both ranks to wait for the reader")
        assert all(int(file.read_text()) < 399 for file in steps.iterdir())
        os.set_blocking(reader.fileno(), True)
        out = reader.read()
    ended = command.wait()
    assert ended.code == 0, ended.err
    assert out.count("x" * 2000) == 2 * 400
    assert "the stacks of all ranks follow" not in ended.err
