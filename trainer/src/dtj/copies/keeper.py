"""The process of an agent that sends its ranks' copies to the buddy and keeps those of its ward.

    slots of own ranks --> Sender --> keeper of the buddy
    keeper of the ward --> Server --> slots of the ward's ranks --> ranks of the ward's next pod

It is a process of its own, so that neither the ranks nor the agent ever wait for it. It shares the memory of
the own ranks' slots, and dies with the agent.
"""

import hmac
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import chain

from dtj.copies import buddy, slot
from dtj.copies.buddy import Address
from dtj.copies.slot import Header, Slot

_LOOK_S = 0.1  # for new copies
_RETRY_S = 5.0
# The buddy's pod may end a moment before this one; a failure that lasts is logged, once.
_TOLD_FAILURES = 2
_COMMAND_BYTES = 64 * 1024
# Connections at the same time: one of the ward's sender, one of each rank of its next pod, and some to spare.
_SPARE = 8

Say = Callable[[str], None]


class Sender(threading.Thread):
    """Sends each new copy of the own ranks to one buddy.

    slots  rank -> its slots; all their copies are sent, also those that another buddy has
    A thread of its own: nothing answers if the buddy is lost, and its successor must not wait until that is
    noticed.
    """

    def __init__(self, address: Address, slots: Mapping[int, Sequence[Slot]], *, say: Say) -> None:
        super().__init__(daemon=True)
        self.address = address
        self._slots = slots
        self._say = say
        self._retry_at = 0.0
        self._failures = 0  # in a row
        self._is_over = threading.Event()
        self._marking = threading.Lock()
        for each in chain.from_iterable(slots.values()):
            each.mark_sent(None)

    def run(self) -> None:
        """Send until `end`."""
        while not self._is_over.wait(_LOOK_S):
            self.send()

    def end(self) -> None:
        """Note nothing from now on, whatever this buddy still answers."""
        with self._marking:
            self._is_over.set()

    def retry(self) -> None:
        """Do not wait any longer if the last attempt failed."""
        self._retry_at = 0.0

    def send(self) -> None:
        """Send what the buddy does not have."""
        if time.monotonic() < self._retry_at:
            return
        for rank, slots in self._slots.items():
            for each in slot.by_age(slots):
                header = each.header()
                if header and not each.is_sent and not self._send(rank, each, header):
                    return

    def _send(self, rank: int, one: Slot, header: Header) -> bool:
        """Send one copy; False if the buddy cannot be reached, or is not the buddy any longer."""
        try:
            is_kept = buddy.send(self.address, rank, one, header)
        except OSError as error:
            self._retry_at = time.monotonic() + _RETRY_S
            self._failures += 1
            if self._failures == _TOLD_FAILURES and not self._is_over.is_set():
                self._say(f"cannot send copies of state to {self.address.host}, retrying: {error}")
            return False
        with self._marking:
            if self._is_over.is_set():
                return False
            if one.header() != header:
                return True  # the rank has overwritten it; there is a newer one
            one.mark_sent(header)
        if not is_kept and self._failures < _TOLD_FAILURES:
            self._say(f"{self.address.host} does not keep the copies of state of rank {rank}")
        self._failures = 0 if is_kept else _TOLD_FAILURES
        return True


def successor(
    sender: Sender | None, address: Address | None, slots: Mapping[int, Sequence[int]], *, say: Say
) -> Sender | None:
    """Who sends to this keeper from now on: the same one, or another one, which sends all copies again.

    slots  rank -> file descriptors
    """
    if sender and sender.address == address:
        sender.retry()
        return sender
    if sender:
        sender.end()
    if not address:
        return None
    found = Sender(address, {rank: tuple(map(Slot, fds)) for rank, fds in slots.items()}, say=say)
    found.start()
    return found


class _OwnSlot(Slot):
    """Its memory is freed with it."""

    def __del__(self) -> None:
        os.close(self.fd)


class _Ward:
    """The two newest copies of a rank of another replica. One connection at a time uses them."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self._slots = tuple(_OwnSlot(fd) for fd in slot.create(rank))
        self._lock = threading.Lock()
        self._receiving: socket.socket | None = None
        self._has_complained = False

    def receive(self, sock: socket.socket, *, say: Say) -> None:
        """Replace the older copy by the one that arrives, unless both are as new."""
        header = buddy.read_header(sock)
        if header is None or header.label.rank != self.rank:
            sock.sendall(buddy.REFUSED)
            return
        with self._lock:
            oldest, newest = slot.by_age(self._slots)
            is_late = slot.age(header.label) <= slot.age(oldest.label())  # from a pod that was replaced
            if is_late or header.label == newest.label():
                sock.sendall(buddy.KEPT)
            elif buddy.has_room(header, oldest):
                self._receiving = sock
                sock.sendall(buddy.WANTED)
                is_whole = oldest.receive(header, lambda view: buddy.read_into(sock, view))
                sock.sendall(buddy.KEPT if is_whole else buddy.REFUSED)
            else:
                if not self._has_complained:
                    size = f"{header.length >> 20} MiB"
                    say(f"too little memory to keep a copy of rank {self.rank}'s state for its pod: {size}")
                self._has_complained = True
                sock.sendall(buddy.REFUSED)

    def give(self, sock: socket.socket) -> None:
        """Send all copies, the oldest first, to the ward's next pod; what its last one began to send ends."""
        if self._receiving:
            with suppress(OSError):  # it has ended already
                self._receiving.shutdown(socket.SHUT_RDWR)
        with self._lock:
            for each in slot.by_age(self._slots):
                header = each.header()
                if header:
                    buddy.wait_longer(sock, header)
                    sock.sendall(header.pack())
                    sock.sendall(each.unchecked_payload(header))


class Server:
    """Keeps copies of each rank of the ward, and gives them to its next pod."""

    def __init__(self, listener: socket.socket, token: str, *, say: Say) -> None:
        self._listener = listener
        self._token = bytes.fromhex(token)
        self._say = say
        self._wards: dict[int, _Ward] = {}
        self._free = threading.BoundedSemaphore(_SPARE)

    def keep(self, ranks: Sequence[int]) -> None:
        """Keep copies of these ranks from now on, and forget those of others."""
        if list(ranks) != list(self._wards):
            self._wards = {rank: self._wards.get(rank) or _Ward(rank) for rank in ranks}
            self._free = threading.BoundedSemaphore(len(ranks) + _SPARE)

    def serve(self) -> None:
        """Accept connections for ever; those that are too many are closed."""
        while True:
            try:
                sock, _ = self._listener.accept()
            except ConnectionError:  # the client has hung up already
                continue
            free = self._free
            if free.acquire(blocking=False):
                threading.Thread(target=self._answer, args=(sock, free), daemon=True).start()
            else:
                sock.close()

    def _answer(self, sock: socket.socket, free: threading.BoundedSemaphore) -> None:
        try:
            with sock, suppress(OSError):
                sock.settimeout(buddy.IDLE_S)
                request = bytearray(buddy.REQUEST.size)
                buddy.read_into(sock, memoryview(request))
                magic, token, operation, rank = buddy.REQUEST.unpack(request)
                ward = self._wards.get(rank)
                if magic != buddy.MAGIC or not hmac.compare_digest(token, self._token) or ward is None:
                    return
                if operation == buddy.SEND:
                    ward.receive(sock, say=self._say)
                elif operation == buddy.FETCH:
                    ward.give(sock)
        finally:
            free.release()


def run(
    commands: socket.socket,
    listener: socket.socket,
    token: str,
    slots: Mapping[int, Sequence[int]],
    *,
    say: Callable[[str], None],
) -> None:
    """The process. Returns when the agent closes its end of `commands`.

    commands  datagrams of JSON: {"buddy": fields of an Address or null, "ward": [rank, ...]}
    slots     rank -> file descriptors
    """
    sender: Sender | None = None
    server = Server(listener, token, say=say)
    threading.Thread(target=server.serve, daemon=True).start()
    while command := commands.recv(_COMMAND_BYTES):
        fields = json.loads(command)
        server.keep(fields["ward"])
        sender = successor(sender, fields["buddy"] and Address(**fields["buddy"]), slots, say=say)
