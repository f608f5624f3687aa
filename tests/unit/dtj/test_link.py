"""Messages over a real connection whose other side reads slowly or not at all."""

import contextlib
import select
import selectors
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from dtj.agent.wire.link import Link, Message, encode
from tests.support.commands import wait_for

LONG = {"text": "x" * 100_000}  # more than the kernel buffers for the connections below


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Both ends of a connection with small buffers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)  # inherited by accepted connections
        one = socket.socket()
        one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
        one.connect(server.getsockname())
        other, _ = server.accept()
    with one, other:
        yield one, other


@pytest.fixture
def selector() -> Iterator[selectors.BaseSelector]:
    with selectors.DefaultSelector() as found:
        yield found


def look(selector: selectors.BaseSelector) -> None:
    """One round of the agent's loop."""
    for key, _ in selector.select(1.0):
        key.data()


def test_slow_reader_gets_everything_in_order(
    ends: tuple[socket.socket, socket.socket], selector: selectors.BaseSelector
) -> None:
    ours, theirs = (Link(end, now=0.0) for end in ends)
    heard: list[Message] = []
    ours.watch(selector, lambda: ours.receive(0.0))
    theirs.watch(selector, lambda: heard.extend(theirs.receive(0.0)))
    sent = [LONG | {"number": number} for number in range(5)]
    for message in sent:
        ours.send(message)
    assert ours.is_open
    wait_for(lambda: look(selector) or len(heard) == len(sent), "all messages")  # type: ignore[func-returns-value]
    assert (heard, ours.is_open, theirs.is_open) == (sent, True, True)
    assert selector.get_key(ours).events == selectors.EVENT_READ, (
        "it would be woken for nothing, all the time"
    )


def test_reader_that_never_reads_loses_the_connection(ends: tuple[socket.socket, socket.socket]) -> None:
    ours = Link(ends[0], now=0.0)
    sent = 0
    while ours.is_open:
        ours.send(LONG)
        sent += 1
        assert sent < 1000
    assert sent > 10, "a burst does not close it"


def test_last_message_is_written_before_the_connection_is_closed(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = Link(ends[0], now=0.0), ends[1]
    for _ in range(5):
        ours.send(LONG)
    found = bytearray()

    def read() -> None:
        while data := theirs.recv(1000):
            found.extend(data)
            if found.count(b"\n") == 5:
                theirs.close()
                return

    reader = threading.Thread(target=read)
    reader.start()
    ours.wait_closed(time.monotonic() + 60)
    ours.close()
    reader.join()
    assert found.count(b"\n") == 5


def test_closed_connection_is_no_longer_watched(
    ends: tuple[socket.socket, socket.socket], selector: selectors.BaseSelector
) -> None:
    ours = Link(ends[0], now=0.0)
    ours.watch(selector, lambda: None)
    ours.send(LONG)
    ours.close()
    assert not selector.get_map()
    ours.send(LONG)
    assert not ours.is_open


def test_line_without_an_end_does_not_fill_the_memory(ends: tuple[socket.socket, socket.socket]) -> None:
    ours, stranger = Link(ends[0], now=0.0), ends[1]
    stranger.setblocking(False)
    sent = 0
    while ours.is_open:
        with contextlib.suppress(OSError):
            sent += stranger.send(b"x" * 100_000)
        assert ours.receive(0.0) == []
        assert sent < 100_000_000
    assert sent > 1_000_000


def test_silence_counts_as_loss_of_another_pod_but_not_within_one_process(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    """A process that was stopped for a minute must not lose its own coordinator: it could not reconnect."""
    own, itself = socket.socketpair()
    with own, itself:
        assert [Link(end, now=0.0).is_silent(60.0) for end in (ends[0], own, itself)] == [True, False, False]


def test_address_of_a_dead_peer_is_known_while_there_are_messages_to_read() -> None:
    """Replica 0 dies right after an order: its address is needed to carry out the order."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        link = Link(socket.create_connection(server.getsockname()), now=0.0)
        other, _ = server.accept()
    link.send({"keepalive": True})
    wait_for(lambda: select.select([other], [], [], 1.0)[0], "something to read")
    other.sendall(encode({"form": {}}))
    other.close()  # unread data turns the close into a reset
    with contextlib.closing(link):
        wait_for(lambda: is_reset(link), "the reset")
        assert link.receive(0.0) == [{"form": {}}]
        assert link.peer == "127.0.0.1"


def is_reset(link: Link) -> bool:
    poll = select.poll()
    poll.register(link, select.POLLIN)
    return any(events & select.POLLHUP for _, events in poll.poll(1000))
