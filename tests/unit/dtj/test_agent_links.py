"""The connections of all agents: bounded, and none is kept that does not say who it is."""

import selectors
import socket
import time
from collections.abc import Iterator

import pytest

from dtj.agent.coordinator.agent_links import AgentLinks
from dtj.agent.wire.protocol import Hello


@pytest.fixture
def selector() -> Iterator[selectors.BaseSelector]:
    with selectors.DefaultSelector() as found:
        yield found


@pytest.fixture
def links(selector: selectors.BaseSelector) -> Iterator[AgentLinks]:
    """Of a job of one replica; its listener is on a free port."""
    found = AgentLinks(
        selector, most=1, on_message=lambda *_: None, on_closed=lambda: None, log=lambda _: None
    )
    found.listen(0)
    yield found
    found.close(linger_s=0.0)


def connect(links: AgentLinks) -> socket.socket:
    assert links._listener is not None
    return socket.create_connection(("localhost", links._listener.getsockname()[1]))


def look(selector: selectors.BaseSelector) -> int:
    """One round of the agent's loop; the number of sockets that were ready."""
    ready = selector.select(0)
    for key, _ in ready:
        key.data()
    return len(ready)


def test_all_that_wait_are_accepted_in_one_round(links: AgentLinks, selector: selectors.BaseSelector) -> None:
    agents = [connect(links) for _ in range(10)]
    look(selector)
    assert len(links.hellos) == 10
    for agent in agents:
        agent.close()


def test_hello_that_waited_behind_others_is_read_before_its_connection_is_closed(
    links: AgentLinks, selector: selectors.BaseSelector
) -> None:
    """Thousands of agents connect in one second, and reading their hellos takes several."""
    heard: list[tuple[object, float]] = []
    links._on_message = lambda link, message: heard.append((message, links._unnamed.pop(link)))
    agent = connect(links)
    look(selector)
    (at,) = links._unnamed.values()
    agent.sendall(b'{"hello": {}}\n')
    links.keep_alive({}, at + 5.1)
    assert [message for message, _ in heard] == [{"hello": {}}]
    assert [link.is_open for link in links.hellos] == [True]
    agent.close()


def test_agent_whose_hello_waited_has_left_its_silent_connection(
    links: AgentLinks, selector: selectors.BaseSelector
) -> None:
    """As after a partition. The agent is here: it must not be reported as silent, either."""
    hello = Hello(uid="", attempt=0, replica=0, incarnation="a")
    links._on_message = lambda link, _: links.introduce(link, hello)
    before = connect(links)
    look(selector)
    before.sendall(b"{}\n")
    look(selector)
    (older,) = links.hellos
    older.heard_at -= 21.0
    again = connect(links)
    look(selector)
    (at,) = links._unnamed.values()
    again.sendall(b"{}\n")
    assert links.keep_alive({}, at + 5.1) == []
    assert links.named() == [hello]
    for sock in (before, again):
        sock.close()


def test_keepalive_that_waited_while_this_process_was_blocked_is_heard(
    links: AgentLinks, selector: selectors.BaseSelector
) -> None:
    """As by the start of a store: no agent is silent then."""
    hello = Hello(uid="", attempt=0, replica=0, incarnation="a")
    links._on_message = lambda link, _: links.introduce(link, hello)
    agent = connect(links)
    look(selector)
    agent.sendall(b"{}\n")
    look(selector)
    (link,) = links.hellos
    link.heard_at -= 21.0
    agent.sendall(b"{}\n")
    assert links.keep_alive({}, time.monotonic()) == []
    link.heard_at -= 21.0
    assert links.keep_alive({}, time.monotonic()) == [hello]
    agent.close()


def test_connection_without_a_hello_is_closed_after_some_seconds(
    links: AgentLinks, selector: selectors.BaseSelector
) -> None:
    stranger = connect(links)
    look(selector)
    (at,) = links._unnamed.values()
    links.keep_alive({}, at + 4.9)
    assert links.take_closed() == []
    assert len(links.hellos) == 1
    links.keep_alive({}, at + 5.1)
    links.take_closed()
    assert links.hellos == {}
    assert stranger.recv(1) == b""
    stranger.close()


def test_connections_are_bounded_without_a_busy_loop(
    links: AgentLinks, selector: selectors.BaseSelector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "_most", 2)
    strangers = [connect(links) for _ in range(4)]
    look(selector)
    assert len(links.hellos) == 2
    assert look(selector) == 0, "the listener is not watched while there is no capacity"
    links.keep_alive({}, time.monotonic() + 6)
    links.take_closed()
    look(selector)
    assert len(links.hellos) == 2, "the next ones"
    for stranger in strangers:
        stranger.close()


def test_too_many_open_files_do_not_stop_the_agent_and_are_reported_once(
    links: AgentLinks, selector: selectors.BaseSelector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else nothing says why a job of more replicas than that waits for ever."""
    said: list[str] = []
    monkeypatch.setattr(links, "_log", said.append)

    class Full:
        def accept(self) -> None:
            raise OSError(24, "Too many open files")

        def fileno(self) -> int:
            return number

    listener = links._listener
    assert listener is not None
    number = listener.fileno()
    agent = connect(links)
    links._listener = Full()  # type: ignore[assignment]
    look(selector)
    assert look(selector) == 0
    links.keep_alive({}, 0.0)
    look(selector)
    assert said == [
        "cannot accept another agent, beside 0: Too many open files\n"
        "  fix: raise the limit of open files (ulimit -n) of replica 0"
    ]
    links._listener = listener
    links.keep_alive({}, 0.0)
    look(selector)
    assert len(links.hellos) == 1
    agent.close()
