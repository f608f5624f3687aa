"""An agent's end of the connection to the coordinator."""

import selectors
import socket
from collections.abc import Iterator

import pytest

from dtj.agent import coordinator_client
from dtj.agent.coordinator_client import CoordinatorClient
from dtj.agent.link import Message, encode
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
