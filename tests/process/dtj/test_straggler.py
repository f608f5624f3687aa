"""Which rank keeps the others waiting: judged by each rank's own work; none if all are slow."""

import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.process.dtj.conftest import PROGRAMS, Command, Finished, free_port, wait_for
from tests.process.dtj.test_status_server import get, status

Finish = Callable[..., Finished]
Start = Callable[..., Command]
PACE = PROGRAMS / "pace.py"


def files(out: Path) -> dict[str, Path]:
    """The environment that names the output folder; the file `go` makes the program not wait at its end."""
    (out / "go").touch()
    return {"OUT": out}


@pytest.mark.parametrize("bare", [{}, {"BARE": 1}], ids=["with dtj", "a plain script"])
def test_slow_rank_is_named_within_20_steps(finish: Finish, tmp_path: Path, bare: dict[str, int]) -> None:
    ended = finish(
        "run", "--nproc", 3, PACE, STEPS=22, STEP_S=0.2, FACTORS="1 2 1", **files(tmp_path), **bare
    )
    assert ended.code == 0, ended.err
    found = re.findall(
        r"dtj: straggler: (rank .*): its own work per step takes (\d\.\d) times as long as", ended.err
    )
    assert [who for who, _ in found] == ["rank 1 on replica 0"]


def test_no_rank_is_named_if_all_are_slow(finish: Finish, tmp_path: Path) -> None:
    ended = finish("run", "--nproc", 3, PACE, STEPS=40, STEP_S=0.05, FACTORS="2 2 2", **files(tmp_path))
    assert ended.code == 0, ended.err
    assert "straggler" not in ended.err


def test_rank_with_half_a_cpu_is_named_until_it_has_a_whole_one(start: Start, tmp_path: Path) -> None:
    """It is stopped and continued from outside, as by a CPU limit."""
    port = free_port()
    command = start(
        "run",
        "--nproc",
        3,
        "--port",
        port,
        PACE,
        STEPS=100_000,
        STEP_S=0.02,
        FACTORS="1 1 1",
        **files(tmp_path),
    )
    wait_for(lambda: status(port).get("step"), "the first step")
    assert status(port)["slowest"] is None
    pid = status(port)["ranks"][2]["pid"]

    def throttled() -> bool:
        """Once named it stays stopped: otherwise it might recover before the test reads the status."""
        os.kill(pid, signal.SIGSTOP)
        time.sleep(0.1)
        if status(port).get("slowestRank") == 2:
            return True
        os.kill(pid, signal.SIGCONT)
        time.sleep(0.05)
        return False

    wait_for(throttled, "the rank to be named")
    found = status(port)["slowest"]
    assert (found["rank"], found["replica"]) == (2, 0)
    assert found["ratio"] >= 1.25
    assert re.search(r'\ndtj_straggler_ratio\{rank="2",replica="0"\} \d', get(port, "/metrics"))
    os.kill(pid, signal.SIGCONT)
    wait_for(lambda: (found := status(port)) and found["slowest"] is None, "the rank to recover")
    assert "dtj_straggler_ratio" not in get(port, "/metrics")
    command.kill()
