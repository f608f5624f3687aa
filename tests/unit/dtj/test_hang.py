"""Ranks that go silent without dying: found by default, named rightly, and never where nothing is wrong."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import dtj
from dtj.agent.hang import (
    FIRST_STEP_S,
    LATE_S,
    LEAST_S,
    WAITS,
    Probe,
    Watchdog,
    culprits,
    culprits_before_first_step,
    innermost,
    sentence,
)
from dtj.data import order
from tests.unit.dtj.conftest import PROGRAMS, SIZES, SMALL, Command, Finished, free_port, wait_for
from tests.unit.dtj.test_resume import assert_identical, weights
from tests.unit.dtj.test_status_server import status

# Rank 1 looks for a file now and then, gets a byte now and then, or waits for a script; then the ranks meet.
WAITS_FOR_THE_WORLD = """
import os, pathlib, socket, subprocess, threading, time
import torch.distributed as dist

def look():
    for _ in range(15):
        pathlib.Path("there-is-none").exists()
        time.sleep(1.0)

def trickle():
    ours, theirs = socket.socketpair()
    def send():
        for _ in range(15):
            time.sleep(1.0)
            theirs.sendall(b".")
        theirs.close()
    threading.Thread(target=send).start()
    while ours.recv(1):
        pass

def run_child():
    subprocess.run(["sh", "-c", "for i in $(seq 15); do sleep 1; done"], check=True)

way = os.environ["WAY"]
if os.environ["RANK"] == "1":
    {"looks": look, "trickles": trickle, "child": run_child}[way]()
dist.init_process_group("gloo")
dist.barrier()
print("done", way, flush=True)
dist.destroy_process_group()
"""
# The limits here are so short that a busy machine may be silent for as long; it heals from that, too.
RESTARTS = 5
Finish = Callable[..., Finished]
Start = Callable[..., Command]
FIRST_SAMPLE = int(order.shuffled(np.zeros(1, np.int64), n=SIZES["SAMPLES"], seed=3, epoch=0)[0])
WAITING = Probe(frame="/lib/torch/autograd/graph.py:865 in _engine_run_backward")
LOADING = Probe(frame="/lib/torch/utils/data/dataloader.py:1 in _try_get_data")


def stepping(
    *, ranks: int = 2, step_s: float = 1.0, steps: int = 20, timeout_s: float | None = None
) -> Watchdog:
    """Ranks that have done some steps, the last of them at the time returned by `end_of`."""
    found = Watchdog(timeout_s=timeout_s)
    found.begin(range(ranks), 0.0)
    for step in range(1, steps + 1):
        for rank in range(ranks):
            found.observe(rank, step, step * step_s, paused=False)
    return found


@pytest.mark.parametrize(
    ("watchdog", "now", "expected"),
    [
        pytest.param(stepping(), 20 + LEAST_S - 1, None, id="short steps: half a minute is no hang"),
        pytest.param(stepping(), 20 + LEAST_S + 1, LEAST_S + 1, id="short steps: more is one"),
        pytest.param(stepping(step_s=10), 200 + 49, None, id="long steps: five times the usual are none"),
        pytest.param(stepping(step_s=10), 200 + 51, 51, id="long steps: more are one"),
        pytest.param(stepping(steps=3), 3 + 299, None, id="the first steps may take ten times as long"),
        pytest.param(stepping(steps=3), 3 + 301, 301, id="but not for ever"),
        pytest.param(stepping(timeout_s=5), 20 + 6, 6, id="the user's limit"),
        pytest.param(stepping(steps=0), 1e6, None, id="before the first step silence alone means nothing"),
    ],
)
def test_silent_for(watchdog: Watchdog, now: float, expected: float | None) -> None:
    assert watchdog.silent_for(now) == expected


def test_pause_of_one_rank_excuses_all_and_its_end_starts_the_count_anew() -> None:
    watchdog = stepping()
    watchdog.observe(1, 20, 25.0, paused=True)
    assert watchdog.silent_for(1e6) is None
    watchdog.observe(1, 20, 1000.0, paused=False)
    assert watchdog.silent_for(1000.0 + LEAST_S - 1) is None  # rank 0 has waited, and may go on
    assert watchdog.limit(0) == LEAST_S - LATE_S  # the pause did not enter the usual length


def test_usual_length_is_that_of_steps_alone() -> None:
    """Not of declared pauses, nor of a generation's first one, for which the ranks come together."""
    watchdog = stepping()
    for step in range(21, 121):
        watchdog.observe(0, step, 100.0 * step, paused=True)
    for generation in range(100):
        watchdog.begin(range(2), 1e6 * generation)
        for step in range(2):
            watchdog.observe(0, step, 1e6 * generation + 1000 * step, paused=False)
    watchdog.begin(range(1), 1e9)
    for step in range(10):
        watchdog.observe(0, step, 1e9 + step, paused=False)
    assert watchdog.limit(0) == LEAST_S - LATE_S


def test_heartbeat_that_tells_of_many_steps_is_not_a_long_step() -> None:
    watchdog = Watchdog()
    watchdog.begin(range(1), 0.0)
    for step in range(0, 200, 20):
        watchdog.observe(0, step, float(step), paused=False)
    assert watchdog.limit(0) == LEAST_S - LATE_S


def test_rank_in_its_start_up_may_be_what_the_others_wait_for() -> None:
    watchdog = Watchdog()
    watchdog.begin(range(2), 0.0)
    for step in range(20):
        watchdog.observe(0, step, float(step), paused=False)
    watchdog.observe(1, 19, 19.0, paused=False)
    assert watchdog.silent_for(19 + LEAST_S) is None
    assert watchdog.silent_for(19 + 10 * LEAST_S)


def test_pause_ends_with_its_generation() -> None:
    watchdog = stepping()
    watchdog.observe(1, 20, 25.0, paused=True)
    watchdog.begin(range(2), 30.0)
    assert watchdog.silent_for(30 + 10 * LEAST_S)


def test_pause_ends_with_its_rank() -> None:
    """Others that it left in a collective would wait for it unseen."""
    watchdog = stepping()
    watchdog.observe(1, 20, 25.0, paused=True)
    watchdog.ended(1)
    assert watchdog.silent_for(20 + 2 * LEAST_S) == 2 * LEAST_S


def test_ranks_are_looked_at_before_the_limit_is_over_however_short_it_is() -> None:
    assert stepping(timeout_s=1).due == (20.5, 21)
    assert stepping(timeout_s=100).due == (20 + 98, 20 + 100)


def test_rank_that_is_done_is_not_expected_to_step() -> None:
    watchdog = stepping(ranks=1)
    watchdog.ended(0)
    assert watchdog.silent_for(1e6) is None


def starting(*, timeout_s: float | None = None, stopped: bool = False) -> Watchdog:
    """Two ranks that last did something at 100, and rank 1 was perhaps stopped then."""
    found = Watchdog(timeout_s=timeout_s)
    found.begin(range(2), 0.0)
    found.observe_activity(0, 100.0, is_stopped=False)
    found.observe_activity(1, 100.0, is_stopped=stopped)
    return found


@pytest.mark.parametrize(
    ("watchdog", "limit_s"),
    [
        pytest.param(starting(), FIRST_STEP_S, id="nobody does anything"),
        pytest.param(starting(timeout_s=5), 50, id="the user's limit, ten times as in all of the start"),
        pytest.param(starting(stopped=True), LEAST_S, id="a stopped process"),
        pytest.param(starting(stopped=True, timeout_s=5), 5, id="a stopped process, and the user's limit"),
    ],
)
def test_before_the_first_step_whoever_does_nothing_is_silent(watchdog: Watchdog, limit_s: float) -> None:
    assert watchdog.due == (100 + limit_s - 2, 100 + limit_s)
    watchdog.observe_activity(1, 200.0, is_stopped=False)
    limit_s = 50 if watchdog.timeout_s else FIRST_STEP_S
    assert watchdog.due == (200 + limit_s - 2, 200 + limit_s), "it works, or goes on"


def test_ranks_of_which_the_system_tells_nothing_are_not_judged_before_the_first_step() -> None:
    watchdog = Watchdog()
    for _generation in range(2):
        watchdog.begin(range(2), 0.0)
        known = []
        for rank in range(2):
            watchdog.observe_activity(rank, 0.0, is_stopped=False)
            known.append(watchdog.due is not None)
        assert known == [False, True]


def test_once_there_are_steps_only_they_count() -> None:
    """A rank in an endless loop uses CPU time too."""
    watchdog = stepping()
    watchdog.observe_activity(1, 40.0, is_stopped=False)
    assert watchdog.silent_for(20 + LEAST_S) == LEAST_S


def asleep(probe: Probe, asleep_s: float = 400.0) -> Probe:
    return replace(probe, asleep_s=asleep_s)


STOPPED = Probe(frame="", is_stopped=True)
ELSEWHERE = Probe(frame="/app/train.py:9 in <module>")


@pytest.mark.parametrize(
    ("probes", "named"),
    [
        pytest.param({0: WAITING, 1: STOPPED, 2: ELSEWHERE}, [1], id="who is stopped, and nobody else"),
        pytest.param({0: WAITING, 1: asleep(ELSEWHERE)}, [1], id="who sleeps while somebody waits for it"),
        pytest.param({0: WAITING, 1: asleep(ELSEWHERE, 200)}, [], id="who wakes up now and then is at work"),
        pytest.param({0: WAITING, 1: asleep(ELSEWHERE), 2: ELSEWHERE}, [], id="one is enough"),
        pytest.param({0: WAITING, 1: LOADING}, [1], id="who waits for its own processes"),
        pytest.param({0: LOADING}, [0], id="also where it is alone"),
        pytest.param({0: asleep(ELSEWHERE)}, [], id="a server may sleep while nobody wants anything"),
        pytest.param({0: WAITING, 1: WAITING}, [0, 1], id="all wait for all"),
        pytest.param({0: WAITING, 1: asleep(Probe())}, [1], id="who does not answer"),
        pytest.param({0: WAITING, 1: Probe()}, [], id="who does not answer, and nothing else is known of it"),
    ],
)  # fmt: skip
def test_culprits_before_the_first_step(probes: dict[int, Probe], named: list[int]) -> None:
    assert culprits_before_first_step(probes, silent_s=600) == named


@pytest.mark.parametrize(
    ("probes", "named"),
    [
        pytest.param({0: WAITING, 1: LOADING, 2: WAITING}, [1], id="who is elsewhere did not come"),
        pytest.param({0: WAITING, 1: Probe()}, [1], id="who does not answer"),
        pytest.param({0: Probe(frame=WAITING.frame, is_stopped=True), 1: WAITING}, [0], id="who is stopped"),
        pytest.param({0: WAITING, 1: WAITING}, [0, 1], id="all wait for all"),
        pytest.param({0: LOADING, 1: LOADING, 2: WAITING}, [0, 1], id="two at once"),
    ],
)
def test_culprits(probes: dict[int, Probe], named: list[int]) -> None:
    assert culprits(probes) == named


@pytest.mark.parametrize("place", WAITS)
def test_code_that_waits_for_peers_is_where_it_is_looked_for(place: str) -> None:
    """A module that moves would make whoever waits in it the culprit."""
    assert [folder for folder in sys.path if (Path(folder) / place).exists()]


def test_code_of_ours_that_waits_for_a_collective_is_known_to_wait() -> None:
    """The wait itself is none of Python's: the frame that is seen is ours."""
    package = Path(dtj.__file__).parent
    waiting = [path for path in package.rglob("*.py") if "work.wait()" in path.read_text()]
    assert waiting
    assert {str(path.relative_to(package.parent)) for path in waiting} <= set(WAITS)


def test_sentence_says_where_the_rank_is() -> None:
    assert sentence(1, LOADING, silence="no step for 31 s", deadlock=False) == (
        "no step for 31 s: rank 1 is in /lib/torch/utils/data/dataloader.py:1 in _try_get_data"
    )
    assert "waits for its peers, as all of them do" in sentence(0, WAITING, silence="none", deadlock=True)


def test_innermost_frame_is_that_of_the_main_thread() -> None:
    stacks = (
        'Thread 0x01 (most recent call first):\n  File "/lib/threading.py", line 5 in run\n\n'
        'Current thread 0x02 (most recent call first):\n  File "/app/train.py", line 7 in loss\n'
        '  File "/app/train.py", line 9 in <module>\n'
    )
    assert innermost(stacks) == "/app/train.py:7 in loss"
    assert innermost("") == ""


def test_innermost_frame_is_not_where_python_itself_waits() -> None:
    loading = (
        'Thread 0x02 (most recent call first):\n  File "/lib/python3/selectors.py", line 415 in select\n'
        '  File "/lib/python3/multiprocessing/connection.py", line 930 in wait\n'
        '  File "/lib/torch/utils/data/dataloader.py", line 1 in _try_get_data\n'
    )
    assert innermost(loading) == LOADING.frame


@pytest.mark.parametrize(
    ("fault", "where"),
    [
        pytest.param("1@7:forward:SIGSTOP", r"is stopped \(SIGSTOP, or a debugger\)", id="stopped"),
        pytest.param("1@7:end:sleep", r"is in .*small\.py:\d+ in fail", id="asleep before a collective"),
        pytest.param("1@7:forward:loop", r"is in .*small\.py:\d+ in fail", id="in an endless loop"),
        pytest.param("0@7:end:sleep", r"is in .*small\.py:\d+ in fail", id="rank 0"),
    ],
)
def test_silent_rank_is_named_ended_and_replaced(
    finish: Finish, tmp_path: Path, unbroken: Callable[..., Path], fault: str, where: str
) -> None:
    flags = ("run", "--nproc", 3, "--max-restarts", RESTARTS, SMALL)
    ended = finish(*flags, OUT=tmp_path, FAULTS=fault, PLAIN=1, DTJ_HANG_SECONDS=2, **SIZES)
    assert ended.code == 0, ended.err
    rank = fault[0]
    assert re.search(rf"dtj: rank {rank} failed: no step for \d+ s: rank {rank} {where}", ended.err)
    for other in {"0", "1", "2"} - {rank}:  # the stacks of all are in the log
        assert re.search(rf"\[rank {other}\]   File .* in ", ended.err)
    assert_identical(weights(unbroken(3, PLAIN=1)), weights(tmp_path))


@pytest.mark.parametrize(
    ("env", "where"),
    [
        pytest.param(
            {"FAULTS": "1@0:start:SIGSTOP", "DTJ_HANG_SECONDS": 2},
            r"rank 1 is stopped \(SIGSTOP, or a debugger\)",
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
            id="the first samples do not come",
        ),
    ],
)
def test_rank_that_does_nothing_before_the_first_step_is_named_ended_and_replaced(
    finish: Finish, tmp_path: Path, unbroken: Callable[..., Path], env: dict[str, object], where: str
) -> None:
    flags = ("run", "--nproc", 2, "--workers", 1, "--max-restarts", RESTARTS, SMALL)
    ended = finish(*flags, OUT=tmp_path, PLAIN=1, **env, **SIZES)
    assert ended.code == 0, ended.err
    assert re.search(rf"failed: no step yet, and nothing done for \d+ s: {where}", ended.err)
    assert_identical(weights(unbroken(2, PLAIN=1)), weights(tmp_path))


def test_rank_that_waits_for_the_world_before_its_first_step_does_not_hang(
    start: Start, tmp_path: Path
) -> None:
    """Longer than what a start may take in which nothing happens, while the other one waits for it."""
    script = tmp_path / "script.py"
    script.write_text(WAITS_FOR_THE_WORLD)
    found = {
        way: start("run", "--nproc", 2, script, DTJ_HANG_SECONDS=1, WAY=way, OUT=tmp_path)
        for way in ("looks", "trickles", "child")
    }
    for way, command in found.items():
        ended = command.wait()
        assert (ended.code, ended.out.count(f"done {way}")) == (0, 2), ended.err
        assert "follow" not in ended.err


def test_hang_that_is_only_reported_ends_nobody(start: Start, tmp_path: Path) -> None:
    port = free_port()
    env = {"OUT": tmp_path, "PLAIN": 1, "STEPS": 100_000, "READY_AT": 20, "DTJ_HANG_SECONDS": 5}
    command = start("run", "--nproc", 2, "--port", port, SMALL, DTJ_HANG_ACTION="Report", **env)
    wait_for((tmp_path / "ready").exists, "step 20")
    wait_for(lambda: len(status(port).get("ranks", ())) == 2, "both ranks in the status")
    pid = status(port)["ranks"][1]["pid"]
    os.kill(pid, signal.SIGSTOP)
    wait_for(lambda: status(port).get("hang"), "the hang to be named")
    assert status(port)["hang"]["ranks"] == [1]
    assert "rank 1 is stopped (SIGSTOP, or a debugger)" in status(port)["hang"]["message"]
    os.kill(pid, signal.SIGCONT)
    wait_for(lambda: (found := status(port)) and found["hang"] is None, "the end of the hang")
    assert (status(port)["generation"], status(port)["failure"]) == (1, None)
    command.signal(signal.SIGTERM)
    err = command.wait().err
    assert re.search(r"\[rank 0\]   File .* in ", err)
    assert err.count("nobody is ended") == 1


def test_hang_without_a_restart_left_is_the_reason_in_the_last_words(finish: Finish, tmp_path: Path) -> None:
    log = tmp_path / "log"
    flags = ("run", "--nproc", 2, "--termination-log", log, SMALL)
    ended = finish(*flags, OUT=tmp_path, FAULTS="1@7:end:sleep", PLAIN=1, DTJ_HANG_SECONDS=2, **SIZES)
    assert ended.code == 128 + signal.SIGKILL
    fields = json.loads(log.read_text())
    assert (fields["reason"], fields["rank"]) == ("Hang", 1)
    assert re.search(r"rank 1 is in .*small\.py:\d+ in fail", fields["message"])


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("DTJ_HANG_ACTION", "restart", "expected Restart or Report"),
        ("DTJ_HANG_SECONDS", "5m", "expected seconds"),
        ("DTJ_MAX_RESTARTS", "many", "expected a whole number of at least 0"),
    ],
)
def test_variable_that_makes_no_sense_is_refused(finish: Finish, name: str, value: str, message: str) -> None:
    ended = finish("run", SMALL, **{name: value})
    assert ended.code == 78
    assert f"{name} is '{value}', {message}" in ended.err


def test_hung_script_that_knows_nothing_of_dtj_is_restarted(finish: Finish, tmp_path: Path) -> None:
    flags = ("run", "--nproc", 2, "--max-restarts", 1)
    ended = finish(*flags, PROGRAMS / "optimizes.py", OUT=tmp_path, DTJ_HANG_SECONDS=2)
    assert ended.code == 0, ended.err
    assert re.search(r"rank 1 failed: no step for \d+ s: rank 1 is in .*optimizes\.py:\d+ in ", ended.err)
    assert ended.out.count("done in life 1") == 2


def test_long_evaluation_and_a_declared_pause_are_no_hang(finish: Finish, tmp_path: Path) -> None:
    """Each lasts longer than what a step may."""
    flags = ("run", "--nproc", 2, "--max-restarts", 0, SMALL)
    env = {"EVALUATE_EVERY": 10, "EVALUATE_S": 0.1, "PAUSE_AT": 10, "PAUSE_S": 5}
    ended = finish(*flags, OUT=tmp_path, PLAIN=1, DTJ_HANG_SECONDS=2, **env, **SIZES)
    assert ended.code == 0, ended.err
    assert "the stacks of all ranks follow" not in ended.err


def test_work_after_the_last_step_is_no_hang(finish: Finish, tmp_path: Path) -> None:
    """Writing a sample or exporting the model takes longer than what a step may."""
    flags = ("run", "--nproc", 2, "--max-restarts", 0, SMALL)
    ended = finish(*flags, OUT=tmp_path, PLAIN=1, DTJ_HANG_SECONDS=2, AFTERWARDS_S=5, **SIZES)
    assert ended.code == 0, ended.err
    assert "the stacks of all ranks follow" not in ended.err


def test_rank_that_alone_leaves_the_loop_is_the_one_that_hangs(finish: Finish, tmp_path: Path) -> None:
    """The others wait for it: that it went by a `break` does not excuse it."""
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


def test_reader_that_pauses_for_longer_than_a_step_may_take_is_no_hang(tmp_path: Path) -> None:
    """The ranks wait in print and the agent with them; all go on when somebody reads again."""
    script, steps = tmp_path / "chatty.py", tmp_path / "steps"
    script.write_text(CHATTY)
    steps.mkdir()
    with subprocess.Popen(
        [sys.executable, "-m", "dtj", "run", "--nproc", "2", script, steps],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=os.environ | {"PYTHONPATH": ":".join(sys.path), "DTJ_HANG_SECONDS": "1"},
    ) as command:  # fmt: skip

        def is_stuck_for_long() -> bool:
            told = [file.stat().st_mtime for file in steps.iterdir()]
            return len(told) == 2 and time.time() - max(told) > 4.0

        wait_for(is_stuck_for_long, "both ranks to wait for the reader")
        assert all(20 < int(file.read_text()) < 399 for file in steps.iterdir())
        out, err = command.communicate()
    assert command.returncode == 0, err
    assert out.count("x" * 2000) == 2 * 400
    assert "the stacks of all ranks follow" not in err
