"""An agent's end of the connection to the coordinator."""

import selectors
import socket
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from dtj.agent.replica import coordinator_client
from dtj.agent.replica.coordinator_client import CoordinatorClient
from dtj.agent.wire.link import Message, encode
from tests.support.commands import wait_for


@pytest.fixture
def selector() -> Iterator[selectors.BaseSelector]:
    with selectors.DefaultSelector() as found:
        yield found


def test_last_message_of_a_dead_coordinator_is_read_before_the_connection_is_dropped(
    selector: selectors.BaseSelector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise an agent that was delayed, by a slow reader of its output say, would reconnect for ever."""
    monkeypatch.setattr(coordinator_client, "KEEPALIVE_S", 0.0)
    heard: list[Message] = []
    logged: list[str] = []
    client = CoordinatorClient(
        selector, ("localhost", 1), agents=1, hello=lambda: {}, on_order=heard.append, log=logged.append
    )
    with socket.create_server(("127.0.0.1", 0)) as server:
        client.attach(socket.create_connection(server.getsockname()))
        coordinator, _ = server.accept()
    with coordinator:
        coordinator.sendall(
            encode({"end": None})
        )  # what the agent sent is not read, so closing resets the connection

    def is_dropped() -> list[str]:  # it may take a message or two until the reset is noticed
        client.tick()
        return logged

    wait_for(is_dropped, "the connection to be dropped")
    assert heard == [{"end": None}]
    client.disconnect()


@pytest.mark.parametrize(
    ("answer", "unheard_s"),
    [
        pytest.param(None, 100.0, id="something accepts the connection"),
        pytest.param(
            {"refused": "another job", "forGood": False}, 100.0, id="the coordinator of another job"
        ),
        pytest.param({"keepalive": True}, 0.0, id="the coordinator"),
    ],
)
def test_only_the_coordinator_of_the_job_counts_as_heard(
    selector: selectors.BaseSelector,
    monkeypatch: pytest.MonkeyPatch,
    answer: Message | None,
    unheard_s: float,
) -> None:
    """Else an agent whose ranks are done would wait for ever for a replica 0 that is gone."""
    now = [1000.0]
    monkeypatch.setattr(coordinator_client, "time", SimpleNamespace(monotonic=lambda: now[0]))
    client = CoordinatorClient(
        selector, ("localhost", 1), agents=1, hello=lambda: {}, on_order=lambda _: None, log=lambda _: None
    )
    now[0] += 100.0
    ours, theirs = socket.socketpair()
    with theirs:
        client.attach(ours)
        if answer:
            theirs.sendall(encode(answer))
            client._on_message()
    assert client.unheard_s(now[0]) == unheard_s
    client.disconnect()


def test_connections_without_an_answer_are_made_with_pauses_and_reported_once(
    selector: selectors.BaseSelector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The proxy of a service mesh accepts each connection at once, and closes it if replica 0 is absent."""
    monkeypatch.setattr(coordinator_client, "time", SimpleNamespace(monotonic=lambda: 1000.0))
    logged: list[str] = []
    client = CoordinatorClient(
        selector, ("localhost", 1), agents=1, hello=lambda: {}, on_order=lambda _: None, log=logged.append
    )

    def connection_ends(*answers: Message) -> float:
        """Returns when the client is to reconnect."""
        ours, theirs = socket.socketpair()
        client.attach(ours)
        theirs.sendall(b"".join(map(encode, answers)))
        theirs.close()
        while client._link:
            client._on_message()
        return client._reconnect_at or 0.0

    assert [connection_ends() for _ in range(3)] == [1001.0] * 3
    assert logged == ["lost the connection to replica 0; waiting for it to come back"]
    assert connection_ends({"keepalive": True}) == 1000.0, "replica 0 was there: its successor may be, too"
    assert logged == ["lost the connection to replica 0; waiting for it to come back"] * 2
