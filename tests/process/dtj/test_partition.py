"""Packets between pods are dropped: detected with default settings, and recovered when they flow again.

Uses real network namespaces, and takes as long as the default timeouts, about 20 and 30 seconds.
"""

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from dtj.agent.wire.link import SILENCE_S
from dtj.agent.wire.protocol import CONNECT_S
from tests.process.dtj.conftest import PROGRAMS, SMALL, Command, Start
from tests.process.dtj.test_buddy import keeps
from tests.support.netns import Networks, lacking, networks

CUT_AT = 8  # the network is cut after this step, however slow the test is
LOOP = PROGRAMS / "loop.py"
_DEADLINE_S = 240.0
_WHY_NOT = lacking()
pytestmark = [
    pytest.mark.skipif(bool(_WHY_NOT), reason=_WHY_NOT),
    pytest.mark.timeout(600),
    pytest.mark.long(40),
]


class Job:
    """`pods` agents, each in its own network namespace, whose ranks train slowly.

    Rank 0 waits after step CUT_AT until `go_on` is called. The job trains until `finish` is called.

    silence_s  after which agents give up a connection
    changed  attributes of dtj's modules -> values that they have in the agents
    """

    def __init__(
        self,
        start: Start,
        nets: Networks,
        out: Path,
        *,
        pods: int,
        program: Path = SMALL,
        silence_s: float = SILENCE_S,
        flags: Sequence[str] = (),
        changed: Mapping[str, object] | None = None,
        **env: object,
    ) -> None:
        self._start, self._nets, self._out = start, nets, out
        self._program, self._flags = program, flags
        self._changed = {"dtj.agent.wire.link.SILENCE_S": silence_s, **(changed or {})}
        for module in ("coordinator.coordinator", "replica.coordinator_client"):
            self._changed[f"dtj.agent.{module}.KEEPALIVE_S"] = silence_s / 10
        self._env = {
            **{"NNODES": pods, "MASTER_ADDR": nets.address(0), "MASTER_PORT": 29500},
            **{"DTJ_MAX_RESTARTS": 5, "GLOO_SOCKET_IFNAME": "eth0", "OUT": out},
            **{"PLAIN": 1, "SAMPLES": 96, "STEPS": 10**6, "STEP_S": 0.1, "HOLD_AT": CUT_AT},
            **env,
        }
        self.agents = [self._begin(pod) for pod in range(pods)]

    def _begin(self, pod: int) -> Command:
        log = ("--termination-log", self._out / f"words-{pod}")
        saving = ("--checkpoint", self._out / "saved", "--save-every", 4)
        words = ("run", *log, *self._flags, *saving, self._program)
        inside = {"network": self._nets.name(pod), "changed": self._changed}
        return self._start(*words, **inside, **self._env, NODE_RANK=pod)

    def replace(self, pod: int) -> None:
        """Kill a pod with all its processes at once, and start another in its place."""
        self.agents[pod].kill()
        self.agents[pod] = self._begin(pod)

    def err(self, pod: int) -> str:
        """The standard error of a pod."""
        return self.agents[pod].err

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

    def finish(self) -> list[int | None]:
        """Let it finish; return the exit codes."""
        (self._out / "finish").touch()
        return self.codes()

    def codes(self) -> list[int | None]:
        """Wait until all agents have exited; return their exit codes."""
        return [agent.wait().code for agent in self.agents]

    def last_words(self, pod: int) -> dict[str, Any]:
        """The termination message of a pod."""
        found: dict[str, Any] = json.loads((self._out / f"words-{pod}").read_text())
        return found


Started = Callable[..., tuple[Job, Networks]]


@pytest.fixture
def started(start: Start, tmp_path: Path) -> Iterator[Started]:
    """started(pods, VARIABLE=...): a job with this number of pods that has done some steps."""
    with contextlib.ExitStack() as stack:

        def begin(pods: int, **env: Any) -> tuple[Job, Networks]:
            nets = stack.enter_context(networks(pods))
            job = Job(start, nets, tmp_path, pods=pods, **env)
            job.until(lambda: job.steps() > CUT_AT, "the first steps")
            return job, nets

        yield begin


def test_isolated_pod_returns_with_its_state(started: Started) -> None:
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
    assert "restarted" not in job.err(0)


@pytest.mark.parametrize(
    ("program", "flags"),
    [
        pytest.param(LOOP, (), id="a plain script"),
        pytest.param(SMALL, (), id="dtj"),
        pytest.param(SMALL, ("--parallel", "fsdp"), id="fsdp"),
    ],
)
def test_ranks_train_on_while_their_agents_cannot_reach_replica_0(
    started: Started, program: Path, flags: Sequence[str]
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


def test_lost_pod_gets_its_copies_from_its_buddy_in_another_network(started: Started) -> None:
    """Its keeper listens on every address; the coordinator tells the one that it sees the pod under."""
    job, _ = started(2, flags=("--parallel", "fsdp", "--memory-every", "3"))
    job.until(lambda: keeps(job.agents[0].pid, 1, CUT_AT), "the copy to be sent")
    job.replace(1)
    job.go_on()
    assert job.finish() == [0, 0]
    assert f"resuming from memory, step {CUT_AT}" in job.err(0)


def test_pods_that_reach_the_coordinator_but_not_each_other(started: Started) -> None:
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


@pytest.mark.long(75)
def test_permanent_cut_uses_up_the_restart_budget(started: Started) -> None:
    """The hang is one restart. The first time that ranks cannot reach each other is free, the next counts.

    The last generation waits no longer for connections than those before: the unit tests show that it may.
    """
    no_longer = {"dtj.agent.coordinator.membership.LONGEST_CONNECT_S": CONNECT_S}
    job, nets = started(3, changed=no_longer, DTJ_MAX_RESTARTS=1, DTJ_HANG_SECONDS=20)
    with nets.cut(1, 2):
        job.go_on()
        assert job.codes() == [76, 76, 76]
    assert "generation 2: restarted all ranks (1 of 1 in-place restarts used)" in job.err(0)
    words = [job.last_words(pod) for pod in range(3)]
    assert {each["reason"] for each in words} == {"PeerLost"}
    assert all("cannot reach its peers" in each["message"] for each in words)
