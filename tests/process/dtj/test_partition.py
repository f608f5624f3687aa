"""Packets between pods are dropped: detected with default settings, and recovered when they flow again.

Uses real network namespaces, and takes as long as the default timeouts, about 20 and 30 seconds.
"""

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from dtj.agent.link import SILENCE_S
from tests.process.dtj.conftest import PROGRAMS, SMALL
from tests.process.dtj.test_buddy import keeps
from tests.support.netns import Networks, lacking, networks

CUT_AT = 8  # the network is cut after this step, however slow the test is
LOOP = PROGRAMS / "loop.py"
AGENT = """
import sys
from dtj import cli
from dtj.agent import coordinator, coordinator_client, link
link.SILENCE_S = float(sys.argv[1])
coordinator.KEEPALIVE_S = coordinator_client.KEEPALIVE_S = link.SILENCE_S / 10
cli.main(sys.argv[2:])
"""
_DEADLINE_S = 240.0
_WHY_NOT = lacking()
pytestmark = [pytest.mark.skipif(bool(_WHY_NOT), reason=_WHY_NOT), pytest.mark.timeout(600)]


class Job:
    """`pods` agents, each in its own network namespace, whose ranks train slowly.

    Rank 0 waits after step CUT_AT until `go_on` is called, and after the last step until `finish` is.

    silence_s  after which agents give up a connection
    """

    def __init__(
        self,
        nets: Networks,
        out: Path,
        *,
        pods: int,
        program: Path = SMALL,
        silence_s: float = SILENCE_S,
        flags: Sequence[str] = (),
        **env: object,
    ) -> None:
        self._out = out
        self._command = [sys.executable, "-c", AGENT, str(silence_s), "run"]
        self._program = program
        self._flags = flags
        self._nets, self._pods, self._env = nets, pods, env
        self.agents = [self._start(pod) for pod in range(pods)]

    def _start(self, pod: int) -> "subprocess.Popen[bytes]":
        nets = self._nets
        env = {
            **{"NNODES": self._pods, "NODE_RANK": pod},
            **{"MASTER_ADDR": nets.address(0), "MASTER_PORT": 29500},
            **{"DTJ_MAX_RESTARTS": 5, "OMP_NUM_THREADS": 1, "GLOO_SOCKET_IFNAME": "eth0", "OUT": self._out},
            **{"PLAIN": 1, "SAMPLES": 96, "STEPS": 40, "STEP_S": 0.1, "HOLD_AT": f"{CUT_AT} 39"},
            **self._env,
        }
        words = [*nets.inside(pod), *self._command]
        words += ["--termination-log", str(self._out / f"words-{pod}")]
        with (self._out / f"err-{pod}").open("wb") as err:
            return subprocess.Popen(
                [
                    *(*words, *self._flags, "--checkpoint", str(self._out / "saved")),
                    *("--save-every", "4", str(self._program)),
                ],
                env=os.environ | {name: str(value) for name, value in env.items()},
                stdout=subprocess.DEVNULL,
                stderr=err,
            )

    def replace(self, pod: int) -> None:
        """Kill a pod with all its processes at once, and start another in its place."""
        self.agents[pod].kill()
        self.agents[pod].wait()
        self.agents[pod] = self._start(pod)

    def end(self) -> None:
        """Kill what still runs."""
        for agent in self.agents:
            agent.kill()
            agent.wait()

    def err(self, pod: int) -> str:
        """The standard error of a pod."""
        return (self._out / f"err-{pod}").read_text()

    def go_on(self) -> None:
        """Let it continue, however many times it reaches that step."""
        (self._out / f"go-{CUT_AT}").touch()

    def steps(self) -> int:
        """Number of steps that rank 0 has done; repeated steps count again."""
        seen = self._out / "seen-0.txt"
        return len(seen.read_text().splitlines()) if seen.exists() else 0

    def until(self, condition: Callable[[], object], what: str) -> None:
        """Poll; fail after a deadline far longer than the timeouts of the agent."""
        deadline = time.monotonic() + _DEADLINE_S
        while not condition():
            assert time.monotonic() < deadline, f"waited too long for {what}: {self.err(0)}"
            time.sleep(0.05)

    def finish(self) -> list[int]:
        """Let it finish; return the exit codes."""
        (self._out / "go-39").touch()
        return self.codes()

    def codes(self) -> list[int]:
        """Wait until all agents have exited; return their exit codes."""
        return [agent.wait(_DEADLINE_S) for agent in self.agents]

    def last_words(self, pod: int) -> dict[str, Any]:
        """The termination message of a pod."""
        found: dict[str, Any] = json.loads((self._out / f"words-{pod}").read_text())
        return found


Start = Callable[..., tuple[Job, Networks]]


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Start]:
    """started(pods, VARIABLE=...): a job with this number of pods that has done some steps."""
    with contextlib.ExitStack() as stack:

        def begin(pods: int, **env: Any) -> tuple[Job, Networks]:
            nets = stack.enter_context(networks(pods))
            job = Job(nets, tmp_path, pods=pods, **env)
            stack.callback(job.end)
            job.until(lambda: job.steps() > CUT_AT, "the first steps")
            return job, nets

        yield begin


def test_isolated_pod_returns_with_its_state(started: Start) -> None:
    """Its connections may be dead: the ranks form again if no step follows, and lose at most one step."""
    job, nets = started(2)
    with nets.cut(0, 1):
        job.go_on()
        job.until(lambda: "no message from replica 1 for 20 s" in job.err(0), "the silence")
        job.until(lambda: "no message from replica 0" in job.err(1), "the other side's word")
        done = job.steps()
    job.until(lambda: job.steps() > done, "a step after it")
    assert job.finish() == [0, 0]
    assert "replica 1 is connected again" in job.err(0)
    assert "restarted" not in job.err(0).replace("restarts used", "")


@pytest.mark.parametrize(
    ("program", "flags"),
    [
        pytest.param(LOOP, (), id="a plain script"),
        pytest.param(SMALL, (), id="dtj"),
        pytest.param(SMALL, ("--parallel", "fsdp"), id="fsdp"),
    ],
)
def test_ranks_train_on_while_their_agents_cannot_reach_replica_0(
    started: Start, program: Path, flags: Sequence[str]
) -> None:
    """Only the agents' own connection is cut. A generation would restart the ranks of all but DDP."""
    job, nets = started(2, program=program, flags=flags, silence_s=3.0, STEP_S=0.2)
    with nets.cut(0, 1, port=29500):
        job.go_on()
        job.until(lambda: "no message from replica 1" in job.err(0), "the silence")
        job.until(lambda: "no message from replica 0" in job.err(1), "the other side's word")
        done = job.steps()
        job.until(lambda: job.steps() > done, "a step without a coordinator")
    job.until(lambda: "replica 1 is connected again" in job.err(0), "the next connection")
    assert job.finish() == [0, 0]
    assert "generation 2" not in job.err(0)


def test_lost_pod_gets_its_copies_from_its_buddy_in_another_network(started: Start) -> None:
    """Its keeper listens on every address; the coordinator tells the one that it sees the pod under."""
    job, _ = started(2, flags=("--parallel", "fsdp", "--memory-every", "3"))
    job.until(lambda: keeps(job.agents[0].pid, 1, CUT_AT), "the copy to be sent")
    job.replace(1)
    job.go_on()
    assert job.finish() == [0, 0]
    assert f"resuming from memory, step {CUT_AT}" in job.err(0)


def test_pods_that_reach_the_coordinator_but_not_each_other(started: Start) -> None:
    """No replica is lost, but no step completes: a hang, so the ranks restart from the checkpoint."""
    job, nets = started(3)
    with nets.cut(1, 2):
        job.go_on()
        job.until(lambda: "the stacks of all ranks follow" in job.err(0), "the hang to be noticed")
        job.until(lambda: "dtj: generation 2: " in job.err(0), "the restart")
        done = job.steps()
    job.until(lambda: job.steps() > done, "a step after it")
    assert job.finish() == [0, 0, 0]
    assert "all ranks wait for each other, so no rank is to blame" in job.err(0)


def test_permanent_cut_uses_up_the_restart_budget(started: Start) -> None:
    """The hang is one restart. The first time that ranks cannot reach each other is free, the next counts."""
    job, nets = started(3, DTJ_MAX_RESTARTS=1, DTJ_HANG_SECONDS=20)
    with nets.cut(1, 2):
        job.go_on()
        assert job.codes() == [76, 76, 76]
    assert "generation 2: restarted all ranks (1 of 1 in-place restarts used)" in job.err(0)
    words = [job.last_words(pod) for pod in range(3)]
    assert {each["reason"] for each in words} == {"PeerLost"}
    assert all("cannot reach its peers" in each["message"] for each in words)
