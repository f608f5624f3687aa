"""An agent's end of the connection to the coordinator."""

import selectors
import socket
from collections.abc import Iterator

import pytest

from dtj.agent import coordinator_client
from dtj.agent.coordinator_client import CoordinatorClient
from dtj.agent.link import Message, encode
from tests.unit.dtj.conftest import wait_for


@pytest.fixture
def selector() -> Iterator[selectors.BaseSelector]:
    with selectors.DefaultSelector() as found:
        yield found


def test_last_words_of_a_coordinator_that_is_gone_are_heard_before_it_is_given_up(
    selector: selectors.BaseSelector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An agent that was held up, by whoever reads its output say, would look for it for ever."""
    monkeypatch.setattr(coordinator_client, "KEEPALIVE_S", 0.0)
    heard: list[Message] = []
    logged: list[str] = []
    client = CoordinatorClient(
        selector, ("localhost", 1), hello=lambda: {}, on_order=heard.append, log=logged.append
    )
    with socket.create_server(("127.0.0.1", 0)) as server:
        client.attach(socket.create_connection(server.getsockname()))
        coordinator, _ = server.accept()
    with coordinator:
        coordinator.sendall(encode({"end": None}))  # and what the agent said is not read: a reset

    def is_given_up() -> list[str]:  # it may take a word or two until the reset is noticed
        client.tick()
        return logged

    wait_for(is_given_up, "the connection to be given up")
    assert heard == [{"end": None}]
    client.disconnect()
