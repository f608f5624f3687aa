"""Finds the process of a rank among the processes of a pod, and pauses a node."""

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from tests.cluster.errors import ClusterError
from tests.cluster.faults import parse_processes, pause, pick_rank

TORCHRUN = """\
pid 300 1
command python3 /usr/bin/torchrun train.py
local_rank 0
pid 310 20
command python3 train.py
local_rank 0
pid 311 21
command python3 train.py
local_rank 1
"""
AGENT = """\
pid 400 1
command dtj run train.py
pid 401 7
command dtj run train.py
pid 402 8
command dtj run train.py
"""
STATUS = {"ranks": [{"rank": 3, "pid": 8}, {"rank": 2, "pid": 7}]}


@pytest.mark.parametrize(
    ("listed", "local_rank", "agent", "pid"),
    [
        pytest.param(
            "pid 9 1\ncommand python train.py\nlocal_rank 0\n", 0, None, 9, id="a plain program is the rank"
        ),
        pytest.param(TORCHRUN, 0, None, 310, id="torchrun is not a rank, its child is"),
        pytest.param(TORCHRUN, 1, None, 311, id="second rank below torchrun"),
        pytest.param(AGENT, 1, STATUS, 402, id="the agent reports forked ranks, lowest rank first"),
        pytest.param(AGENT, 2, STATUS, None, id="there is no third rank"),
        pytest.param(AGENT, 0, None, None, id="neither agent nor environment names the ranks"),
    ],
)
def test_process_of_a_rank(listed, local_rank, agent, pid):
    chosen = pick_rank(parse_processes("node", listed), local_rank=local_rank, agent=agent)
    assert (chosen and chosen.pid) == pid


@pytest.mark.parametrize(
    ("answers", "calls", "works"),
    [
        pytest.param(["unable to freeze", "unable to freeze", ""], 3, True, id="processes wait for the disk"),
        pytest.param(["no such container", ""], 1, False, id="another error"),
    ],
)
def test_node_is_paused_once_its_processes_can_be_stopped(
    answers: list[str], calls: int, works: bool
) -> None:
    asked: list[tuple[str, ...]] = []

    def runtime(*args: str) -> None:
        asked.append(args)
        if why := answers[len(asked) - 1]:
            raise ClusterError(why)

    cluster: Any = SimpleNamespace(runtime=runtime)
    with nullcontext() if works else pytest.raises(ClusterError):
        pause(cluster, "worker")
    assert asked == [("pause", "worker")] * calls
