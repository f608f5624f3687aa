"""What the coordinator makes of messages that cross: over a real connection, with a real store."""

import selectors
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

import pytest

from dtj.agent.coordinator import Coordinator, some
from dtj.agent.hang import Watchdog
from dtj.agent.link import Link, Message, encode
from dtj.agent.membership import Membership
from dtj.agent.outcome import Ending
from dtj.agent.protocol import PROTOCOL, Job, RestartBudget


@dataclass(frozen=True, kw_only=True)
class Pod:
    """A job of one replica and three ranks; `tell` is its agent, `said` is what people were told."""

    watchdog: Watchdog
    coordinator: Coordinator
    selector: selectors.BaseSelector
    agent: Link
    logged: list[str]

    def send(self, *messages: Message) -> None:
        """All at once, as when several ranks die together; heard one after the other."""
        for message in messages:
            self.agent.send(message)
        for key, _ in self.selector.select(0):
            key.data()


def hello(incarnation: str, **fields: object) -> Message:
    """Of replica 0's agent, or of who takes itself for it."""
    known = {"protocol": PROTOCOL, "uid": "", "attempt": 0, "replica": 0, "healable": [], "state": {}}
    return {"hello": known | {"incarnation": incarnation} | fields}


@pytest.fixture
def pod(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pod]:
    """Its parameter says whether hung ranks are ended. Nothing is due however long its store takes."""
    monkeypatch.setattr("dtj.agent.coordinator.KEEPALIVE_S", 3600.0)
    restarts_hung = getattr(request, "param", True)
    selector = selectors.DefaultSelector()
    watchdog = Watchdog()
    membership = Membership(job=Job(processes=3), budget=RestartBudget(restarts=5))
    logged: list[str] = []
    coordinator = Coordinator(membership, watchdog, selector, restarts_hung=restarts_hung, log=logged.append)
    agent = Link(coordinator.link(), now=0.0)
    found = Pod(watchdog=watchdog, coordinator=coordinator, selector=selector, agent=agent, logged=logged)
    found.send(hello("a"), *({"hold": rank, "holds": True} for rank in range(3)))
    yield found
    agent.close()
    coordinator.close()
    selector.close()


def killed(rank: int, generation: int) -> Message:
    ending = Ending(rank=rank, code=137, signal=9, at=datetime(2026, 1, 1, tzinfo=UTC))
    return {"ended": ending.to_json(), "generation": generation}


def heartbeats(generation: int, step: int, *ranks: int) -> Message:
    return {"heartbeats": {str(rank): [generation, step, False] for rank in ranks}}


def test_second_death_that_is_told_after_the_new_generation_takes_nobody_from_it(pod: Pod) -> None:
    pod.send(heartbeats(1, 5, 0, 1, 2))
    pod.send(killed(2, 1), heartbeats(1, 6, 0, 1), killed(1, 1))
    assert pod.coordinator.membership.state.generation == 2
    pod.send(heartbeats(2, 6, 0), heartbeats(2, 7, 0, 1, 2))
    assert sorted(pod.watchdog.ranks) == [0, 1, 2]
    assert pod.coordinator.steps == {0: 7, 1: 7, 2: 7}


def test_step_of_a_rank_that_is_no_more_is_not_taken_for_its_successors(pod: Pod) -> None:
    pod.send(killed(1, 1), heartbeats(1, 6, 1))
    assert 1 not in pod.coordinator.steps


def test_refused_agent_may_go_on_talking(pod: Pod) -> None:
    """All in one packet: the connection is dropped by the first message, the others are of nobody."""
    stranger = Link(pod.coordinator.link(), now=0.0)
    pod.send()
    for message in (hello("b", uid="another job's"), heartbeats(1, 5, 0), killed(0, 1)):
        stranger.send(message)
    pod.send(heartbeats(1, 7, 0, 1, 2))
    assert pod.coordinator.steps == {0: 7, 1: 7, 2: 7}
    assert [list(message) for message in stranger.receive(0.0)] == [["refused", "forGood"]]
    stranger.close()


def test_agent_that_is_back_before_its_old_connection_is_seen_to_end_is_not_lost_with_it(pod: Pod) -> None:
    """It finds replica 0 silent a moment before replica 0 finds the same of it."""
    again = Link(pod.coordinator.link(), now=0.0)
    pod.send()
    again.send(hello("a"))
    pod.send()
    pod.agent.close()
    pod.send()
    again.send(heartbeats(2, 7, 0, 1, 2))
    pod.send()
    assert pod.coordinator.membership.agents == {0: "a"}
    assert pod.coordinator.steps == {0: 7, 1: 7, 2: 7}
    assert pod.logged == ["generation 2: restarted all ranks (0 of 5 in-place restarts used)"]
    again.close()


@pytest.mark.parametrize(
    "line",
    [
        *(b"GET / HTTP/1.1\n", b"1\n", b"[]\n", b"null\n", b'{"hello": 1}\n', b'{"hello": {"uid": ""}}\n'),
        *map(encode, (hello("", attempt="x"), hello("", protocol=None), hello("", state=0))),
        *(b'{"hello": {"protocol": 1e999}}\n', b"[" * 50_000 + b"\n"),
    ],
)
def test_whoever_is_no_agent_is_hung_up_on(pod: Pod, line: bytes) -> None:
    with pod.coordinator.link() as stranger:
        stranger.sendall(line)
        pod.send(heartbeats(1, 7, 0, 1, 2))
        assert stranger.recv(1) == b""
    assert pod.coordinator.steps == {0: 7, 1: 7, 2: 7}


@pytest.mark.parametrize(
    ("theirs", "place", "for_good"),
    [
        pytest.param(PROTOCOL - 1, {}, True, id="an older one"),
        pytest.param(PROTOCOL + 1, {}, True, id="a newer one"),
        pytest.param(
            PROTOCOL + 1, {"attempt": 1}, False, id="of the next attempt, which has begun elsewhere"
        ),
        pytest.param(PROTOCOL + 1, {"uid": "b"}, False, id="of another job"),
    ],
)
def test_agent_of_another_version_is_told_so_and_by_what_it_is_mended(
    pod: Pod, theirs: int, place: Message, *, for_good: bool
) -> None:
    """It knows its place in the job, and may know nothing else of what we do."""
    stranger = Link(pod.coordinator.link(), now=0.0)
    pod.send()
    told = {"protocol": theirs, "uid": "", "attempt": 0, "replica": 0} | place
    for message in ({"hello": told}, heartbeats(1, 5, 0)):
        stranger.send(message)
    pod.send(heartbeats(1, 7, 0, 1, 2))
    (refused,) = stranger.receive(0.0)
    assert refused["forGood"] is for_good
    assert f"has protocol version {theirs}, replica 0 has {PROTOCOL}" in refused["refused"]
    assert "digest (name@sha256:...)" in refused["refused"]
    assert pod.logged == [f"refused replica 0: {refused['refused']}"]
    assert pod.coordinator.steps == {0: 7, 1: 7, 2: 7}
    stranger.close()


def test_ranks_are_looked_at_when_their_silence_is_due_and_only_while_they_are_together(pod: Pod) -> None:
    pod.watchdog.timeout_s = 0.01
    for step in (5, 6, 7, 8):
        pod.send(heartbeats(1, step, 0, 1, 2))
    due = pod.watchdog.due
    assert due
    assert pod.coordinator.deadline == due[0]
    pod.coordinator.membership.is_formed = False
    assert pod.coordinator.deadline > due[1]


def test_activity_of_a_rank_that_is_no_more_is_not_taken_for_its_successors(pod: Pod) -> None:
    pod.send({"activity": {"0": [1, False], "1": [1, False], "2": [0, False]}})
    assert pod.watchdog.due is None
    pod.send({"activity": {"2": [1, False]}})
    assert pod.watchdog.due


def test_rank_that_is_done_is_not_waited_for_however_late_its_last_step_is_told(pod: Pod) -> None:
    done = Ending(rank=1, code=0, at=datetime(2026, 1, 1, tzinfo=UTC))
    pod.send({"ended": done.to_json(), "generation": 1}, heartbeats(1, 6, 0, 1))
    assert sorted(pod.watchdog.ranks) == [0, 2]


def hang(pod: Pod) -> None:
    """All ranks wait for all, for longer than they may, and the stacks of all are there."""
    pod.watchdog.timeout_s = 0.01
    for step in (5, 6, 7, 8):
        pod.send(heartbeats(1, step, 0, 1, 2))
    due = pod.watchdog.due
    assert due
    while time.monotonic() < due[1]:
        time.sleep(0.001)
    pod.coordinator.tick()
    waits = ["/lib/torch/autograd/graph.py:865 in _engine_run_backward", False, 0.0]
    pod.send({"probes": {str(rank): waits for rank in range(3)}})
    pod.coordinator.tick()


@pytest.mark.parametrize("pod", [False], indirect=True, ids=["hangs are reported"])
def test_hang_ends_with_its_generation(pod: Pod) -> None:
    hang(pod)
    assert pod.coordinator.facts().hang
    pod.coordinator.membership.leave("a", time.monotonic())
    pod.coordinator.tick()
    assert pod.coordinator.facts().hang is None


def test_ranks_that_are_ended_for_a_hang_are_not_counted_on_though_only_one_has_died_yet(pod: Pod) -> None:
    hang(pod)
    pod.send(killed(1, 1))
    orders = pod.agent.receive(0.0)
    assert [order["form"]["kept"] for order in orders if "form" in order] == [[], []]


def test_line_about_a_large_job_stays_short() -> None:
    assert some(range(3)) == "0, 1, 2"
    assert some(range(1000)) == "0, 1, 2, 3, 4, 5, 6, 7 and 992 more"
