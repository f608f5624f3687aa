"""How the coordinator handles messages that cross each other: over a real connection, without a store."""

import selectors
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from unittest.mock import Mock

import pytest

from dtj.agent.coordinator.coordinator import Coordinator, some
from dtj.agent.coordinator.membership import Membership
from dtj.agent.coordinator.restarts import Restarts
from dtj.agent.coordinator.watch.hang import Watchdog
from dtj.agent.wire.facts import Heartbeats, Probes, as_message
from dtj.agent.wire.link import Link, Message, encode
from dtj.agent.wire.outcome import Ending
from dtj.agent.wire.probe import Place, Probe
from dtj.agent.wire.protocol import PROTOCOL, Job, Limits, RankState, RestartBudget
from dtj.agent.wire.signs import Heartbeat


@dataclass(frozen=True, kw_only=True)
class Pod:
    """A job of one replica and three ranks; `send` acts as its agent, `logged` is the coordinator's log."""

    watchdog: Watchdog
    coordinator: Coordinator
    selector: selectors.BaseSelector
    agent: Link
    logged: list[str]

    def send(self, *messages: Message) -> None:
        """Send all at once, as if several ranks died together; they are handled one after the other."""
        for message in messages:
            self.agent.send(message)
        for key, _ in self.selector.select(0):
            key.data()


def hello(incarnation: str, **fields: object) -> Message:
    """From the agent of replica 0, or from one that claims to be it."""
    known = {"protocol": PROTOCOL, "uid": "", "attempt": 0, "replica": 0, "restarts": 0}
    known |= {"processes": 3, "isStopping": False, "state": {}, "keeper": None}
    known["ranks"] = ranks_of(1)
    return {"hello": known | {"incarnation": incarnation} | fields}


def ranks_of(generation: int) -> dict[int, object]:
    return {rank: RankState(generation=generation) for rank in range(3)}


@pytest.fixture
def pod(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pod]:
    """The parameter: whether hung ranks are restarted. Nothing is due, however slow the machine is."""
    store = Mock(start=lambda: Mock(pid=0, port=1))  # a process; see tests/process/dtj/test_store.py
    monkeypatch.setattr("dtj.agent.coordinator.coordinator.Store", store)
    monkeypatch.setattr("dtj.agent.coordinator.coordinator.KEEPALIVE_S", 3600.0)
    restarts_hung = getattr(request, "param", True)
    selector = selectors.DefaultSelector()
    watchdog = Watchdog()
    restarts = Restarts(budget=RestartBudget(restarts=5))
    membership = Membership(job=Job(processes=3), restarts=restarts)
    logged: list[str] = []
    coordinator = Coordinator(membership, watchdog, selector, restarts_hung=restarts_hung, log=logged.append)
    agent = Link(coordinator.link(), now=0.0)
    found = Pod(watchdog=watchdog, coordinator=coordinator, selector=selector, agent=agent, logged=logged)
    found.send(hello("a", ranks=ranks_of(0)), *({"ready": [rank, 1]} for rank in range(3)))
    found.send(*({"hold": [rank, True]} for rank in range(3)))
    yield found
    agent.close()
    coordinator.close()
    selector.close()


def killed(rank: int, generation: int) -> Message:
    ending = Ending(rank=rank, code=137, signal=9, at=datetime(2026, 1, 1, tzinfo=UTC))
    return {"ended": [ending, generation]}


def heartbeats(generation: int, step: int, *ranks: int) -> Message:
    return as_message(Heartbeats({rank: Heartbeat(generation, step, None) for rank in ranks}))


def test_death_that_is_reported_after_the_new_generation_does_not_affect_it(pod: Pod) -> None:
    pod.send(heartbeats(1, 5, 0, 1, 2))
    pod.send(killed(2, 1), heartbeats(1, 6, 0, 1), killed(1, 1))
    assert pod.coordinator.membership.state.generation == 2
    pod.send(heartbeats(2, 6, 0), heartbeats(2, 7, 0, 1, 2))
    assert sorted(pod.watchdog.ranks) == [0, 1, 2]
    assert pod.coordinator.steps == {0: 7, 1: 7, 2: 7}


@pytest.mark.parametrize("is_over", [True, False])
def test_end_of_the_agent_waits_for_the_others_only_if_the_job_is_over(
    pod: Pod, monkeypatch: pytest.MonkeyPatch, is_over: bool
) -> None:
    """Else they do not hang up, and the pod of replica 0 ends 5 s later, which delays its replacement."""
    waits: list[bool] = []
    monkeypatch.setattr(Link, "wait_closed", lambda _, until: waits.append(until > time.monotonic()))
    pod.coordinator.membership.is_over = is_over
    pod.coordinator.close()
    assert waits == [is_over]


def test_step_of_a_dead_rank_is_not_credited_to_its_successor(pod: Pod) -> None:
    pod.send(heartbeats(1, 5, 0, 1, 2))
    pod.send(killed(1, 1), heartbeats(1, 6, 1))
    assert pod.coordinator.steps == {0: 5, 2: 5}


def test_further_messages_of_a_refused_agent_are_ignored(pod: Pod) -> None:
    """All in one packet: the first message drops the connection, the others have no sender."""
    stranger = Link(pod.coordinator.link(), now=0.0)
    pod.send()
    for message in (hello("b", uid="another job's"), heartbeats(1, 5, 0), killed(0, 1)):
        stranger.send(message)
    pod.send(heartbeats(1, 7, 0, 1, 2))
    assert pod.coordinator.steps == {0: 7, 1: 7, 2: 7}
    assert [list(message) for message in stranger.receive(0.0)] == [["refused", "forGood"]]
    stranger.close()


def test_log_says_that_a_job_does_not_grow_by_a_replica_that_has_joined(pod: Pod) -> None:
    member = pod.coordinator.membership
    limits = Limits(1, 4, excluded=frozenset({2}))
    member.job = replace(member.job, limits=limits, saves=True)
    assert pod.coordinator.status_fields()["waiting"] is None
    other = Link(pod.coordinator.link(), now=0.0)
    pod.send()
    other.send(hello("b", replica=1, ranks={}))
    pod.send()
    assert pod.logged == ["a job whose --mesh does not fit 2 replicas cannot grow: replica 1 must wait"]
    assert pod.coordinator.status_fields()["waiting"] == pod.logged[0]
    other.close()


def test_agent_that_reconnects_early_is_not_lost_with_its_old_connection(pod: Pod) -> None:
    """It notices the silence of replica 0 a moment before replica 0 notices its silence."""
    again = Link(pod.coordinator.link(), now=0.0)
    pod.send()
    again.send(hello("a"))
    pod.send()
    pod.agent.close()
    pod.send()
    again.send(heartbeats(1, 7, 0, 1, 2))
    pod.send()
    assert pod.coordinator.membership.agents == {0: "a"}
    assert pod.coordinator.steps == {0: 7, 1: 7, 2: 7}
    assert pod.logged == [], "its ranks train on"
    again.close()


@pytest.mark.parametrize(
    "line",
    [
        *(b"GET / HTTP/1.1\n", b"1\n", b"[]\n", b"null\n", b'{"hello": 1}\n', b'{"hello": {"uid": ""}}\n'),
        *map(encode, (hello("", attempt="x"), hello("", protocol=None), hello("", state=0))),
        *(b'{"hello": {"protocol": 1e999}}\n', b"[" * 50_000 + b"\n"),
    ],
)
def test_connection_that_is_not_from_an_agent_is_closed(pod: Pod, line: bytes) -> None:
    with pod.coordinator.link() as stranger:
        stranger.sendall(line)
        pod.send(heartbeats(1, 7, 0, 1, 2))
        assert stranger.recv(1) == b""
    assert pod.coordinator.steps == {0: 7, 1: 7, 2: 7}


@pytest.mark.parametrize(
    "message",
    [
        {"ready": 1},
        {"ready": [0, "x"]},
        {"ready": [99, 1]},
        {"hold": [0, 1]},
        {"hold": [{}, True]},
        {"hold": {"rank": 0, "holds": True}},
        {"heartbeats": [{"0": [1, 2]}]},
        {"heartbeats": [{"x": [1, 2, None]}]},
        {"heartbeats": [{"0": [1, 1e999, None]}]},
        {"heartbeats": [{"0": [1, 2, None, [1, 2.0], 3.0, 4]}]},
        {"activity": [[1]]},
        {"probes": [{"0": [1, False, 0.0]}, 1]},
        {"ended": [{"rank": 0}, 1]},
        {"ended": [{"rank": 0, "code": 1, "at": "soon"}, 1]},
        {"ended": [{"rank": 0, "code": 1, "at": "2026-01-01T00:00:00+00:00", "more": 1}, 1]},
        {"lost": [{"rank": 7, "code": 76, "at": "2026-01-01T00:00:00+00:00"}, 1]},
    ],
    ids=str,
)
def test_malformed_message_closes_its_connection_and_nothing_else(pod: Pod, message: Message) -> None:
    pod.send(message)
    while pod.agent.receive(0.0):
        pass
    assert not pod.agent.is_open
    assert pod.coordinator.membership.away == {0}
    (closed, *_) = pod.logged
    assert closed.startswith("closed the connection to replica 0: malformed message (")
    again = Link(pod.coordinator.link(), now=0.0)
    pod.send()
    again.send(hello("a"))
    pod.send()
    assert (pod.coordinator.membership.away, pod.coordinator.membership.state.generation) == (set(), 1)
    again.close()


def test_nothing_is_said_to_a_connection_before_its_hello(pod: Pod, monkeypatch: pytest.MonkeyPatch) -> None:
    with pod.coordinator.link() as stranger:
        pod.send()
        monkeypatch.setattr("dtj.agent.coordinator.coordinator.KEEPALIVE_S", 0.0)
        pod.coordinator._keepalive_at = 0.0
        pod.coordinator.tick()
        stranger.setblocking(False)
        with pytest.raises(BlockingIOError):
            stranger.recv(1)
    assert any("keepalive" in message for message in pod.agent.receive(0.0))


def test_text_of_a_stranger_is_escaped_in_the_log(pod: Pod) -> None:
    forged = "7\ndtj: rank 3 failed: \x1b[31m"
    with pod.coordinator.link() as stranger:
        stranger.sendall(encode({"hello": {"protocol": PROTOCOL + 1, "replica": forged}}))
        pod.send()
        pod.send()
    assert len(pod.logged) == 1
    assert not {"\n", "\x1b"} & set(pod.logged[0])


@pytest.mark.parametrize(
    ("theirs", "place", "for_good"),
    [
        pytest.param(PROTOCOL - 1, {}, True, id="an older version"),
        pytest.param(PROTOCOL + 1, {}, True, id="a newer version"),
        pytest.param(
            PROTOCOL + 1, {"attempt": 1}, False, id="of the next attempt, which has started elsewhere"
        ),
        pytest.param(PROTOCOL + 1, {"uid": "b"}, False, id="of another job"),
    ],
)
def test_agent_of_another_version_gets_the_reason_and_the_fix(
    pod: Pod, theirs: int, place: Message, *, for_good: bool
) -> None:
    """It sends its replica index; no other field of the protocol is certain."""
    stranger = Link(pod.coordinator.link(), now=0.0)
    pod.send()
    fields = {"protocol": theirs, "uid": "", "attempt": 0, "replica": 0} | place
    for message in ({"hello": fields}, heartbeats(1, 5, 0)):
        stranger.send(message)
    pod.send(heartbeats(1, 7, 0, 1, 2))
    (refused,) = stranger.receive(0.0)
    assert refused["forGood"] is for_good
    assert f"has protocol version {theirs}, replica 0 has {PROTOCOL}" in refused["refused"]
    assert "digest (name@sha256:...)" in refused["refused"]
    assert pod.logged == [f"refused replica 0: {refused['refused']}"]
    assert pod.coordinator.steps == {0: 7, 1: 7, 2: 7}
    stranger.close()


def test_silent_ranks_are_probed_when_due_and_only_while_the_generation_is_formed(pod: Pod) -> None:
    pod.watchdog.timeout_s = 0.01
    for step in (5, 6, 7, 8):
        pod.send(heartbeats(1, step, 0, 1, 2))
    due = pod.watchdog.due
    assert due
    assert pod.coordinator.deadline == due[0]
    pod.coordinator.membership.is_formed = False
    assert pod.coordinator.deadline > due[1]


def test_activity_of_a_dead_rank_is_not_credited_to_its_successor(pod: Pod) -> None:
    pod.send({"activity": [{"0": [1, False], "1": [1, False], "2": [0, False]}]})
    assert pod.watchdog.due is None
    pod.send({"activity": [{"2": [1, False]}]})
    assert pod.watchdog.due


def test_rank_that_is_done_is_not_waited_for_even_if_its_last_step_is_reported_late(pod: Pod) -> None:
    done = Ending(rank=1, code=0, at=datetime(2026, 1, 1, tzinfo=UTC))
    pod.send({"ended": [done, 1]}, heartbeats(1, 6, 0, 1))
    assert sorted(pod.watchdog.ranks) == [0, 2]


def hang(pod: Pod) -> None:
    """All ranks wait for each other beyond the limit, and all stacks have arrived."""
    pod.watchdog.timeout_s = 0.01
    for step in (5, 6, 7, 8):
        pod.send(heartbeats(1, step, 0, 1, 2))
    due = pod.watchdog.due
    assert due
    while time.monotonic() < due[1]:
        time.sleep(0.001)
    pod.coordinator.tick()
    waits = Probe(place=Place("/lib/torch/autograd/graph.py:865 in _engine_run_backward"))
    pod.send(as_message(Probes(dict.fromkeys(range(3), waits), 1)))
    pod.coordinator.tick()


@pytest.mark.parametrize("pod", [False], indirect=True, ids=["hangs are reported"])
def test_hang_ends_with_its_generation(pod: Pod) -> None:
    hang(pod)
    assert pod.coordinator.status_fields()["hang"]
    pod.coordinator.membership.leave("a", time.monotonic())
    pod.coordinator.tick()
    assert pod.coordinator.status_fields()["hang"] is None


def test_order_to_form_names_only_the_ranks_of_its_agent(pod: Pod) -> None:
    """All ranks to all agents would be a gigabyte in a job of thousands."""
    pod.send(killed(2, 1))
    [form] = [
        order["form"] for order in pod.agent.receive(0.0) if order.get("form", {}).get("generation") == 2
    ]
    assert (form["kept"], form["heals"]) == ([0, 1], True)


def test_message_about_a_hang_names_only_the_ranks_of_its_agent(pod: Pod) -> None:
    """A sentence for each of 8,000 ranks would exceed what a connection may keep unsent."""
    member = pod.coordinator.membership
    member.job = replace(member.job, limits=Limits(1, 2))
    other = Link(pod.coordinator.link(), now=0.0)
    pod.send()
    other.send(hello("b", replica=1, ranks={}))
    pod.send()
    hang(pod)
    [ours], [theirs] = (
        [order["hang"] for order in link.receive(0.0) if "hang" in order] for link in (pod.agent, other)
    )
    assert (list(ours), theirs) == (["0", "1", "2"], {})
    other.close()


def test_ranks_killed_for_a_hang_are_not_kept_even_if_only_one_has_died_yet(pod: Pod) -> None:
    hang(pod)
    pod.send(killed(1, 1))
    orders = pod.agent.receive(0.0)
    assert [order["form"]["kept"] for order in orders if "form" in order] == [[], []]


def test_line_about_a_large_job_stays_short() -> None:
    assert some(range(3)) == "0, 1, 2"
    assert some(range(1000)) == "0, 1, 2, 3, 4, 5, 6, 7 and 992 more"
