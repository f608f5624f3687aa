"""What an agent's keeper accepts, gives away and sends: both ends in this process, over loopback."""

import contextlib
import os
import secrets
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial

import pytest

from dtj.copies import buddy, slot, space
from dtj.copies.buddy import Address
from dtj.copies.keeper import Sender, Server, successor
from dtj.copies.slot import HEADER_BYTES, LABEL_BYTES, Header, Label, Slot
from tests.support.ports import free_port

RANK = 3
PAYLOAD = bytes(range(256)) * 20_000  # several chunks


@dataclass
class Keeper:
    """The keeper of the buddy, and what it said."""

    address: Address
    server: Server
    said: list[str] = field(default_factory=list)

    def kept(self) -> list[tuple[int, bytes]]:
        """Steps and payloads that a new pod of the ward would get."""
        with Fresh() as slots:
            buddy.fetch(self.address, RANK, slots)
            return [held(each) for each in slots if each.label()]


class Fresh:
    """Two empty slots."""

    def __enter__(self) -> list[Slot]:
        self._fds = slot.create(RANK)
        return [Slot(fd) for fd in self._fds]

    def __exit__(self, *_: object) -> None:
        for fd in self._fds:
            os.close(fd)


@pytest.fixture
def own() -> Iterator[list[Slot]]:
    with Fresh() as slots:
        yield slots


@pytest.fixture
def keeper() -> Iterator[Keeper]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = Address(host="127.0.0.1", port=listener.getsockname()[1], token=secrets.token_hex(16))
        said: list[str] = []
        server = Server(listener, address.token, say=said.append)
        server.keep([RANK])

        def serve() -> None:
            with pytest.raises(OSError, match=r"Invalid|Bad file"):
                server.serve()

        thread = threading.Thread(target=serve)
        thread.start()
        yield Keeper(address, server, said)
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


def write(target: Slot, step: int, *, generation: int = 1) -> None:
    label = Label(job=b"j" * 16, rank=RANK, generation=generation, layout=b"l" * 16, step=step)
    target.seal(label, target.fill(len(PAYLOAD), lambda view: view.__setitem__(slice(None), PAYLOAD)))


def held(one: Slot) -> tuple[int, bytes]:
    label, payload = one.label(), one.payload()
    assert label
    assert payload is not None
    return label.step, bytes(payload)


def sender(own: list[Slot], said: list[str], address: Address) -> Sender:
    return Sender(address, {RANK: own}, say=said.append)


@contextlib.contextmanager
def sending_another(keeper: Keeper, one: Slot, *, step: int) -> Iterator[socket.socket]:
    """A connection on which a copy of a later step begins: its header has arrived, its payload has not."""
    header = one.header()
    assert header
    with keeper.address.connect(buddy.SEND, RANK) as sock:
        sock.sendall(header._replace(label=replace(header.label, step=step)).pack())
        assert sock.recv(1) == buddy.WANTED
        yield sock


def test_buddy_keeps_the_two_newest_copies_and_gives_them_to_the_next_pod(
    keeper: Keeper, own: list[Slot]
) -> None:
    sends = sender(own, keeper.said, keeper.address)
    for step in (1, 2, 3):
        write(slot.by_age(own)[0], step)
        assert not all(each.is_sent for each in own)
        sends.send()
        assert all(each.is_sent for each in own if each.label())
    assert keeper.kept() == [(2, PAYLOAD), (3, PAYLOAD)]
    assert keeper.said == []


def test_a_new_buddy_gets_all_copies_again(keeper: Keeper, own: list[Slot]) -> None:
    write(own[0], 1)
    for each in own:
        each.mark_sent(each.header())
    sender(own, keeper.said, keeper.address).send()
    assert keeper.kept() == [(1, PAYLOAD)]


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[socket.socket, Address]]:
    """A keeper that answers nothing, as one of a lost pod; its silence is noticed after minutes only."""
    monkeypatch.setattr(buddy, "IDLE_S", 300.0)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener, Address(host="127.0.0.1", port=listener.getsockname()[1], token="00" * 16)


def test_copies_go_to_a_new_buddy_while_the_lost_one_is_still_waited_for(
    keeper: Keeper, own: list[Slot], silent: tuple[socket.socket, Address], monkeypatch: pytest.MonkeyPatch
) -> None:
    listener, address = silent
    sent = threading.Event()
    mark = Slot.mark_sent

    def marked(one: Slot, header: Header | None) -> None:
        mark(one, header)
        if header:
            sent.set()

    monkeypatch.setattr(Slot, "mark_sent", marked)
    write(own[0], 1)
    use = partial(successor, slots={RANK: [each.fd for each in own]}, say=keeper.said.append)
    first = use(None, address)
    with listener.accept()[0]:
        second = use(first, keeper.address)
        assert use(second, keeper.address) is second
        assert sent.wait(60)
        assert keeper.kept() == [(1, PAYLOAD)]
    assert use(second, None) is None
    assert keeper.said == []


def test_copy_that_replaces_one_whose_end_is_noted_late_is_sent(
    keeper: Keeper, own: list[Slot], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rank begins its next copy just before the sender notes that the buddy has this one."""
    mark = Slot.mark_sent

    def marked_late(one: Slot, header: Header | None) -> None:
        if one is own[0] and header and header.label.step == 1:
            payload = one.fill(len(PAYLOAD), lambda view: view.__setitem__(slice(None), PAYLOAD))
            mark(one, header)
            one.seal(replace(header.label, step=2), payload)
        else:
            mark(one, header)

    monkeypatch.setattr(Slot, "mark_sent", marked_late)
    write(own[0], 1)
    sends = sender(own, keeper.said, keeper.address)
    for _ in range(2):
        sends.send()
    assert keeper.kept() == [(1, PAYLOAD), (2, PAYLOAD)]


def test_late_answer_of_a_lost_buddy_does_not_count(
    own: list[Slot], silent: tuple[socket.socket, Address]
) -> None:
    listener, address = silent
    write(own[0], 1)
    sends = sender(own, [], address)
    sends.start()
    with listener.accept()[0] as late:
        sends.end()
        late.sendall(buddy.KEPT)
        sends.join()
    assert not own[0].is_sent


def test_next_pod_need_not_wait_for_what_the_lost_one_was_sending(
    keeper: Keeper, own: list[Slot], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(buddy, "IDLE_S", 300.0)
    for step in (1, 2):
        write(own[step - 1], step)
    sender(own, keeper.said, keeper.address).send()
    with sending_another(keeper, own[1], step=3):
        assert keeper.kept() == [(2, PAYLOAD)]


def test_late_copy_of_a_pod_that_was_replaced_is_not_kept(keeper: Keeper, own: list[Slot]) -> None:
    for step, generation in ((8, 2), (9, 2), (10, 1)):
        write(own[0], step, generation=generation)
        header = own[0].header()
        assert header
        assert buddy.send(keeper.address, RANK, own[0], header)
    assert keeper.kept() == [(8, PAYLOAD), (9, PAYLOAD)]


@pytest.mark.parametrize("place", [HEADER_BYTES + 99, 99], ids=["payload", "nothing that counts"])
def test_copy_that_arrives_damaged_is_not_kept(keeper: Keeper, own: list[Slot], place: int) -> None:
    """As if the rank overwrote it while it was sent."""
    write(own[0], 1)
    os.pwrite(own[0].fd, b"xy", place)
    header = own[0].header()
    assert header
    is_whole = place < HEADER_BYTES
    assert buddy.send(keeper.address, RANK, own[0], header) == is_whole
    assert [step for step, _ in keeper.kept()] == ([1] if is_whole else [])


def test_sender_that_dies_costs_only_the_older_copy(keeper: Keeper, own: list[Slot]) -> None:
    for step in (1, 2):
        write(own[0], step)
        sender(own, keeper.said, keeper.address).send()
        own[0].mark_sent(None)
    with sending_another(keeper, own[0], step=3) as sock:
        sock.sendall(PAYLOAD[:1000])
    assert keeper.kept() == [(2, PAYLOAD)]


def damage(header: bytes) -> bytes:
    return header[:20] + bytes([header[20] ^ 1]) + header[21:]


def huge(header: bytes) -> bytes:
    known = Header.parse(header)
    assert known
    return known._replace(length=1 << 62).pack()


def of_another_rank(header: bytes) -> bytes:
    known = Header.parse(header)
    assert known
    return known._replace(label=replace(known.label, rank=4)).pack()


@pytest.mark.parametrize("forge", [damage, huge, of_another_rank])
def test_header_that_cannot_be_right_is_refused_and_nothing_is_allocated(
    keeper: Keeper, own: list[Slot], forge: Callable[[bytes], bytes]
) -> None:
    write(own[0], 1)
    header = own[0].header()
    assert header
    with keeper.address.connect(buddy.SEND, RANK) as sock:
        sock.sendall(forge(header.pack()))
        assert sock.recv(1) in {buddy.REFUSED, b""}
    assert keeper.kept() == []


def test_copy_for_which_there_is_no_memory_is_not_sent_again(
    keeper: Keeper, own: list[Slot], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(space, "bytes_left", lambda: 1000)
    write(own[0], 1)
    sender(own, keeper.said, keeper.address).send()
    assert own[0].is_sent
    write(own[1], 2)
    sender(own, keeper.said, keeper.address).send()
    assert len(keeper.said) == 3, "once on the keeper's side, once for each sender"
    assert "too little memory" in keeper.said[0]
    assert keeper.said[1:] == [f"127.0.0.1 does not keep the copies of state of rank {RANK}"] * 2


@pytest.mark.parametrize("rank", [RANK, 7], ids=["wrong token", "not a ward"])
def test_stranger_gets_nothing(keeper: Keeper, own: list[Slot], rank: int) -> None:
    write(own[0], 1)
    sender(own, keeper.said, keeper.address).send()
    address = replace(keeper.address, token="00" * 16) if rank == RANK else keeper.address
    with Fresh() as slots:
        with contextlib.suppress(ConnectionError):  # it hung up before it had read everything
            assert buddy.fetch(address, rank, slots) == 0
        assert [each.label() for each in slots] == [None, None]


def test_garbage_ends_its_own_connection_only(keeper: Keeper, own: list[Slot]) -> None:
    for data in (b"", b"GET / HTTP/1.1\r\n\r\n" * 9, buddy.MAGIC, struct.pack("<8sQ", buddy.MAGIC, 1)):
        with socket.create_connection((keeper.address.host, keeper.address.port)) as sock:
            sock.sendall(data)
    write(own[0], 1)
    sender(own, keeper.said, keeper.address).send()
    assert keeper.kept() == [(1, PAYLOAD)]


def test_ward_that_changed_is_forgotten(keeper: Keeper, own: list[Slot]) -> None:
    write(own[0], 1)
    sender(own, keeper.said, keeper.address).send()
    keeper.server.keep([RANK, 4])
    assert keeper.kept() == [(1, PAYLOAD)]
    keeper.server.keep([4])
    keeper.server.keep([RANK])
    assert keeper.kept() == []


def test_buddy_that_cannot_be_reached_is_tried_again_later(own: list[Slot]) -> None:
    """After some seconds, or in the next generation; one sentence, however often it fails."""
    port = free_port()  # which no other process gets meanwhile
    said: list[str] = []
    address = Address(host="127.0.0.1", port=port, token="00" * 16)
    sends = sender(own, said, address)
    write(own[0], 1)
    sends.send()
    with socket.create_server(("127.0.0.1", port)) as back:
        back.setblocking(False)
        sends.send()
        with pytest.raises(BlockingIOError):
            back.accept()
    assert said == [], "its pod may have ended a moment earlier"
    for _ in range(2):
        sends.retry()
        sends.send()
    assert not own[0].is_sent
    assert len(said) == 1
    assert said[0].startswith("cannot send copies of state to 127.0.0.1, retrying: ")


def test_header_on_the_wire_has_its_length() -> None:
    label = Label(job=b"j" * 16, rank=1, generation=1, layout=b"l" * 16, step=9)
    header = Header(label, 7, 8)
    assert len(header.pack()) == LABEL_BYTES
    assert Header.parse(header.pack()) == header
