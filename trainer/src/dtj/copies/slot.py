"""One copy of a rank's state in shared memory: complete, or ignored. Knows bytes, not tensors.

    header   LABEL: whose copy it is, and of which step; length and checksum of the payload   written last
    sent     in the header's page: the header of the copy of which nothing remains to be sent to the buddy
    payload  bytes that tree.py reads and writes

The agent creates two slots for each rank before it forks it (memfd). A rank overwrites the older one, so that
the newer one is valid if it dies meanwhile.
"""

import hashlib
import json
import mmap
import os
import struct
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

# magic, job, rank, generation, step, layout, length and checksum of the payload, checksum of the header
_HEADER = struct.Struct("<8s16sQQQ16sQII")
_MAGIC = b"dtjcopy2"
LABEL_BYTES = _HEADER.size
_SENT_AT = 2048
# The payload starts at a page, so that tensors in it are aligned.
HEADER_BYTES = 4096


@dataclass(frozen=True, kw_only=True)
class Label:
    """Whose copy it is.

    job         digest of the job's uid
    generation  in which the copy was made: the same step of another generation may differ
    layout      digest of what all ranks must have in common to use it: strategy, sizes, names of parts
    """

    job: bytes
    rank: int
    generation: int
    layout: bytes
    step: int = 0


# (generation, step) of a copy; greater is newer
Age = tuple[int, int]


class Header(NamedTuple):
    """A label with the length and the checksum of the payload, as they are in memory and on the wire."""

    label: Label
    length: int
    checksum: int

    @classmethod
    def parse(cls, header: bytes) -> "Header | None":
        """None if the bytes hold no label, or a damaged one."""
        if len(header) < LABEL_BYTES or header == bytes(LABEL_BYTES):
            return None
        magic, job, rank, generation, step, layout, length, checksum, own = _HEADER.unpack(header)
        if magic != _MAGIC or zlib.crc32(header[:-4]) != own:
            return None
        label = Label(job=job, rank=rank, generation=generation, step=step, layout=layout)
        return cls(label, length, checksum)

    def pack(self) -> bytes:
        """The bytes, with a checksum of their own."""
        label = self.label
        fields = (_MAGIC, label.job, label.rank, label.generation, label.step, label.layout)
        header = _HEADER.pack(*fields, self.length, self.checksum, 0)[:-4]
        return header + struct.pack("<I", zlib.crc32(header))


class Slot:
    """Shared memory that holds one copy or none. `fd` of a memfd, which may be empty."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._memory = memoryview(b"")

    @property
    def allocated(self) -> int:
        """Bytes of memory that it uses."""
        return os.fstat(self.fd).st_blocks * 512

    def header(self) -> Header | None:
        """Whose copy the slot holds, and its checksum; None if it holds none. The payload is not checked."""
        self._map()
        return Header.parse(bytes(self._memory[:LABEL_BYTES]))

    def label(self) -> Label | None:
        """Whose copy the slot holds, likewise."""
        found = self.header()
        return found and found.label

    def payload(self) -> memoryview | None:
        """The payload, None if it is damaged. The next `write` changes it."""
        found = self.header()
        view = self.unchecked_payload(found) if found else memoryview(b"")
        return view if found and len(view) == found.length and zlib.crc32(view) == found.checksum else None

    def unchecked_payload(self, header: Header) -> memoryview:
        """The payload that belongs to the header, unless it was changed since."""
        return self._memory[HEADER_BYTES : HEADER_BYTES + header.length]

    def fill(self, length: int, write: Callable[[memoryview], None]) -> memoryview:
        """Replace the payload, which is a copy once it is sealed; until then the slot holds none.

        write  writes `length` bytes into its argument
        OSError if there is no memory.
        """
        payload = self._make_room(length)
        write(payload)
        return payload

    def seal(self, label: Label, payload: memoryview) -> None:
        """Make what `fill` returned a copy. It takes 0.3 to 1 s for each GB, and other threads can run."""
        self._memory[:LABEL_BYTES] = Header(label, len(payload), zlib.crc32(payload)).pack()

    def receive(self, header: Header, fill: Callable[[memoryview], None]) -> bool:
        """Replace the copy by one that arrives; False, and the slot holds none, if its checksum is wrong."""
        payload = self._make_room(header.length)
        fill(payload)
        if zlib.crc32(payload) != header.checksum:
            return False
        self._memory[:LABEL_BYTES] = header.pack()
        return True

    @property
    def is_sent(self) -> bool:
        """The buddy has the copy that the slot holds, or does not want it."""
        header = self.header()
        return header is not None and self._memory[_SENT_AT : _SENT_AT + LABEL_BYTES] == header.pack()

    def mark_sent(self, header: Header | None) -> None:
        """Note the copy that the buddy has, or does not want; the rank may be replacing it at this moment."""
        self._map()
        if self._memory:
            sent = header.pack() if header else bytes(LABEL_BYTES)
            self._memory[_SENT_AT : _SENT_AT + LABEL_BYTES] = sent

    def clear(self) -> None:
        """Hold no copy from now on."""
        self._map()
        if self._memory:
            self._memory[:LABEL_BYTES] = bytes(LABEL_BYTES)

    def _make_room(self, length: int) -> memoryview:
        self.clear()
        self._grow(HEADER_BYTES + length)
        return self._memory[HEADER_BYTES : HEADER_BYTES + length]

    def _grow(self, size: int) -> None:
        """Allocate the memory now: a write to memory that cannot be allocated would kill the process."""
        if os.fstat(self.fd).st_size < size:
            os.posix_fallocate(self.fd, 0, size)
        self._map()

    def _map(self) -> None:
        size = os.fstat(self.fd).st_size
        if len(self._memory) != size:
            self._memory = memoryview(mmap.mmap(self.fd, size))


def digest(value: Any) -> bytes:
    """16 bytes that stand for a value of JSON."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).digest()[:16]


def create(rank: int) -> tuple[int, ...]:
    """File descriptors of two empty slots for a rank; none if this system has no memfd (macOS)."""
    if not hasattr(os, "memfd_create"):
        return ()
    return tuple(os.memfd_create(f"dtj-rank-{rank}-{side}") for side in "ab")


def by_age(slots: Iterable[Slot]) -> Sequence[Slot]:
    """The oldest first; before it those without a copy."""
    return sorted(slots, key=lambda slot: age(slot.label()))


def age(label: Label | None) -> Age:
    """No copy is the oldest."""
    return (label.generation, label.step) if label else (-1, -1)


_inherited: tuple[int, ...] = ()


def inherit(fds: tuple[int, ...]) -> None:
    """Called in the rank, right after the fork."""
    global _inherited  # noqa: PLW0603 - a process is one rank
    _inherited = fds


def mine() -> tuple[Slot, ...]:
    """The slots of this rank; none without an agent."""
    return tuple(Slot(fd) for fd in _inherited)
