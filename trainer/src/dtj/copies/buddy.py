"""The connection to a buddy's keeper: sends it a copy, or fetches the copies that it keeps of a rank.

One connection for each request. Nothing that arrives is executed: a fixed header, then bytes with a checksum.

    SEND   header of the copy ->           <- WANTED, or KEPT if it is there already, or REFUSED
           payload ->                      <- KEPT, or REFUSED if it arrived damaged
    FETCH                                  <- for each copy, the oldest first: header and payload
"""

import json
import socket
import struct
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from dtj.copies import space
from dtj.copies.slot import LABEL_BYTES, Header, Slot

# magic, token, operation, rank
REQUEST = struct.Struct("<8s16scQ")
MAGIC = b"dtjbudd1"
SEND, FETCH = b"s", b"f"
WANTED, KEPT, REFUSED = b"w", b"k", b"r"
# No byte for so long: the other side is lost.
IDLE_S = 10.0
CHUNK_BYTES = 1 << 20
# Of the memory that is left, a copy that arrives may take so much.
USABLE = 0.5
_LONGEST_PAUSE_S = 0.05
# At least so fast the other side computes a checksum.
_CHECKED_PER_S = 1e8


@dataclass(frozen=True, kw_only=True)
class Address:
    """Of a keeper. The token shows that the other side has it from the coordinator."""

    host: str
    port: int
    token: str

    @classmethod
    def parse(cls, text: str) -> "Address":
        """From the text of `format`."""
        return cls(**json.loads(text))

    def format(self) -> str:
        """As text, for a variable."""
        return json.dumps(asdict(self))

    def connect(self, operation: bytes, rank: int) -> socket.socket:
        """Start a request; OSError if the keeper cannot be reached."""
        sock = socket.create_connection((self.host, self.port), timeout=IDLE_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.sendall(REQUEST.pack(MAGIC, bytes.fromhex(self.token), operation, rank))
        return sock


def send(address: Address, rank: int, slot: Slot, header: Header) -> bool:
    """Send the copy with that header; whether the buddy has it now. OSError if it cannot be reached.

    Pauses as long as it sends: the network belongs to training. If the rank overwrites the copy meanwhile,
    the buddy finds its checksum wrong.
    """
    with address.connect(SEND, rank) as sock:
        sock.sendall(header.pack())
        answer = sock.recv(1)
        if answer == WANTED:
            payload = slot.unchecked_payload(header)
            for start in range(0, len(payload), CHUNK_BYTES):
                began = time.monotonic()
                sock.sendall(payload[start : start + CHUNK_BYTES])
                time.sleep(min(time.monotonic() - began, _LONGEST_PAUSE_S))
            wait_longer(sock, header)
            answer = sock.recv(1)
        if not answer:
            raise ConnectionError("the buddy closed the connection")
        return answer == KEPT


def fetch(address: Address, rank: int, slots: Sequence[Slot]) -> int:
    """Fill the empty slots of a rank with what its buddy keeps; the number of copies.

    OSError if the buddy cannot be reached, or if there is no memory. What has arrived by then is valid.
    """
    found = 0
    with address.connect(FETCH, rank) as sock:
        sock.settimeout(2 * IDLE_S)  # it may wait as long for the lost pod
        for slot in slots:
            header = read_header(sock)
            if header is None:
                break
            if not has_room(header, slot):
                raise OSError(f"a copy takes {header.length >> 20} MiB, too much for the memory that is left")
            found += slot.receive(header, lambda view: read_into(sock, view))
            slot.mark_sent(header)
    return found


def wait_longer(sock: socket.socket, header: Header) -> None:
    """The other side is silent while it computes the checksum of the copy."""
    sock.settimeout(IDLE_S + header.length / _CHECKED_PER_S)


def has_room(header: Header, slot: Slot) -> bool:
    """Whether this container has memory for a copy that arrives."""
    left = space.bytes_left()
    return left is None or header.length - slot.allocated <= USABLE * left


def read_header(sock: socket.socket) -> Header | None:
    """The header that comes next; None at the end of the stream. ConnectionError if it is damaged."""
    data = bytearray(LABEL_BYTES)
    view = memoryview(data)
    first = sock.recv_into(view)
    if not first:
        return None
    read_into(sock, view[first:])
    header = Header.parse(bytes(data))
    if header is None:
        raise ConnectionError("a header is damaged")
    return header


def read_into(sock: socket.socket, view: memoryview) -> None:
    """Fill the memory with what arrives; ConnectionError if the stream ends before."""
    while view:
        count = sock.recv_into(view[:CHUNK_BYTES])
        if not count:
            raise ConnectionError("the connection ended within a copy")
        view = view[count:]
