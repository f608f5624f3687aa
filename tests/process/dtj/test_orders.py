"""How an agent carries out the coordinator's orders; test_heal.py does so with real ranks."""

import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest

from dtj.agent.placement import Placement
from dtj.agent.rank.process import RankProcess
from dtj.agent.replica.coordinator_client import CoordinatorClient
from dtj.agent.replica.heartbeats import HeartbeatReader
from dtj.agent.replica.looks import Looks
from dtj.agent.replica.orders import Orders
from dtj.agent.replica.stacks import RankStacks, Stacks
from dtj.agent.replica.supervisor import Supervisor
from dtj.agent.report.status import Status
from dtj.agent.wire.facts import Fact, Probes, Stopping
from dtj.agent.wire.link import encode
from dtj.agent.wire.probe import Probe
from dtj.agent.wire.protocol import Hello, Job, RankState
from dtj.telemetry.heartbeat import PAUSE_S, SharedHeartbeat

FORM: dict[str, Any] = {"port": 4242, "heals": True, "replicas": 1, "gracefully": False, "connect_s": 20.0}
FORM |= {"copies": {"buddy": None, "ward": None}}


@dataclass(kw_only=True)
class Node:
    """A pod of one sleeping rank; stands in for the supervisor and the connection to the coordinator."""

    process: RankProcess
    sent: list[Fact] = field(default_factory=list)
    shown: list[str] = field(default_factory=list)
    started: list[int] = field(default_factory=list)
    ended: list[bool] = field(default_factory=list)  # gracefully
    peer: str = "10.0.0.1"
    is_connected: bool = True

    def __post_init__(self) -> None:
        self.newest = {0: self.process}
        self.heartbeats = HeartbeatReader(every_s=0.05)
        self.looks = Looks(Stacks(), self.heartbeats.activity, self.alive)
        self.orders = Orders(
            Job(),
            Placement.read({}, nproc=1),
            status=Status(),
            heartbeats=self.heartbeats,
            looks=self.looks,
            supervisor=cast(Supervisor, self),
            client=cast(CoordinatorClient, self),
            log=lambda _: None,
        )

    def alive(self) -> list[RankProcess]:
        return [self.process]

    def states(self) -> dict[int, RankState]:
        return {0: self.process.state_in(1)}

    def send(self, fact: Fact) -> None:
        self.sent.append(fact)

    def disconnect(self) -> None:
        self.is_connected = False

    def show_stacks(self, _: RankProcess, text: str) -> None:
        self.shown.append(text)

    def start(self, rank: int, env: dict[str, str], **_: object) -> None:
        self.started.append(rank)

    def end(self, *, gracefully: bool, step_s: float) -> None:
        self.ended.append(gracefully)


@pytest.fixture
def node() -> Iterator[Node]:
    with subprocess.Popen(["sleep", "600"], process_group=0) as sleeper:
        read, write = os.pipe()
        os.set_blocking(read, False)
        process = RankProcess(
            rank=0, pid=sleeper.pid, streams={}, reports=-1, orders=write, stacks=read,
            heartbeat=SharedHeartbeat(), generation=1, holds=True,
        )  # fmt: skip
        yield Node(process=process)
        sleeper.kill()


def test_coordinator_can_parse_our_hello(node: Node) -> None:
    hello = Hello.parse(json.loads(encode(node.orders.hello())))
    assert (hello.replica, hello.healable) == (0, frozenset({0}))


def test_survivor_gets_the_new_generation_and_its_state_is_reported_again(node: Node) -> None:
    """It may be in a long evaluation, which the new generation would not know about."""
    with node.process.heartbeat.paused():
        assert node.heartbeats.read(node.process)
        assert node.heartbeats.read(node.process) is None
        node.orders.obey({"form": FORM | {"generation": 2, "kept": [0]}})
        found = node.heartbeats.read(node.process)
    assert found
    assert (found.generation, found.pause_s) == (2, PAUSE_S)
    assert os.read(node.process.stacks, 1000).startswith(b'{"number": 2, "addr": "10.0.0.1"')
    assert node.started == []


def test_rank_that_is_not_kept_is_restarted(node: Node) -> None:
    node.orders.obey({"form": FORM | {"generation": 2, "kept": []}})
    assert node.started == [0]


@pytest.mark.parametrize("gracefully", [True, False])
def test_rank_beyond_the_size_takes_part_in_the_agreed_save(node: Node, gracefully: bool) -> None:
    """The others wait for it there: without it, they lose the steps since the last checkpoint."""
    node.orders._placement = replace(node.orders._placement, node_rank=2)
    order = FORM | {"generation": 2, "kept": [], "replicas": 2, "gracefully": gracefully}
    node.orders.obey({"form": order})
    assert (node.ended, node.started) == ([gracefully], [])


def test_pod_that_was_asked_to_terminate_joins_no_generation(node: Node) -> None:
    node.orders.is_stopping = True
    node.orders.obey({"form": FORM | {"generation": 2, "kept": [0]}})
    assert (node.sent, node.process.generation) == ([Stopping()], 1)


@pytest.mark.parametrize(("replica", "hangs_up"), [(1, True), pytest.param(0, False, id="the coordinator's")])
def test_agent_whose_rank_still_runs_hangs_up_once_the_job_has_succeeded(
    node: Node, replica: int, hangs_up: bool
) -> None:
    """Replica 0's agent waits for that before it ends, and the job has succeeded once it has."""
    node.orders._placement = replace(node.orders._placement, node_rank=replica)
    node.orders.obey({"end": None})
    assert node.is_connected != hangs_up
    assert node.orders.has_succeeded


def test_stacks_are_shown_with_the_verdict_and_once(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        node.looks, "request", lambda _, then: then({0: Probe(responds=True)}, [RankStacks(node.process)])
    )
    node.orders.obey({"probe": 7, "looks_s": 5.0})
    assert (node.sent, node.shown) == ([Probes({0: Probe(responds=True)}, 7)], [])
    for _ in range(2):
        node.orders.obey({"hang": {}, "generation": 1, "is_shared": False})
    assert len(node.shown) == 1


@pytest.mark.parametrize(("generation", "ends"), [(1, True), (2, False)])
def test_only_a_process_of_the_generation_that_hung_is_killed(
    node: Node, generation: int, ends: bool
) -> None:
    node.orders.obey({"hang": {"0": "no step for 30 s"}, "generation": generation, "is_shared": False})
    assert bool(node.process._failure) == ends


@pytest.mark.parametrize(("is_shared", "cause"), [(False, "Hang"), (True, "PeerLost")])
def test_hang_that_no_rank_is_to_blame_for_is_a_lost_peer(node: Node, is_shared: bool, cause: str) -> None:
    """The operator does not count a lost peer against the node."""
    node.orders.obey({"hang": {"0": "no step for 30 s"}, "generation": 1, "is_shared": is_shared})
    assert node.process._ended(137, signal_number=9).cause == cause
