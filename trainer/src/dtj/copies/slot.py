"""One copy of a rank's state in shared memory: complete, or ignored. Knows bytes, not tensors.

    header   LABEL: whose copy it is, and of which step; length and checksum of the payload   written last
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
from typing import Any

# magic, job, rank, generation, step, layout, length and checksum of the payload, checksum of the header
_HEADER = struct.Struct("<8s16sQQQ16sQII")
_MAGIC = b"dtjcopy1"
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


class Slot:
    """Shared memory that holds one copy or none. `fd` of a memfd, which may be empty."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._memory = memoryview(b"")

    @property
    def allocated(self) -> int:
        """Bytes of memory that it uses."""
        return os.fstat(self.fd).st_blocks * 512

    def label(self) -> Label | None:
        """Whose copy the slot holds; None if it holds none. The payload is not checked."""
        found = self._read_header()
        return found and found[0]

    def payload(self) -> memoryview | None:
        """The payload, None if it is damaged. The next `write` changes it."""
        found = self._read_header()
        if found is None:
            return None
        _, length, checksum = found
        view = self._memory[HEADER_BYTES : HEADER_BYTES + length]
        return view if len(view) == length and zlib.crc32(view) == checksum else None

    def write(self, label: Label, length: int, fill: Callable[[memoryview], None]) -> None:
        """Replace the copy. OSError if there is no memory; then the slot holds none.

        fill  writes `length` bytes into its argument
        """
        self.clear()
        self._grow(HEADER_BYTES + length)
        payload = self._memory[HEADER_BYTES : HEADER_BYTES + length]
        fill(payload)
        fields = (_MAGIC, label.job, label.rank, label.generation, label.step, label.layout)
        header = _HEADER.pack(*fields, length, zlib.crc32(payload), 0)
        self._memory[: _HEADER.size] = header[:-4] + struct.pack("<I", zlib.crc32(header[:-4]))

    def clear(self) -> None:
        """Hold no copy from now on."""
        self._map()
        if self._memory:
            self._memory[: _HEADER.size] = bytes(_HEADER.size)

    def _read_header(self) -> tuple[Label, int, int] | None:
        self._map()
        header = bytes(self._memory[: _HEADER.size])
        if len(header) < _HEADER.size or header == bytes(_HEADER.size):
            return None
        magic, job, rank, generation, step, layout, length, checksum, own = _HEADER.unpack(header)
        if magic != _MAGIC or zlib.crc32(header[:-4]) != own:
            return None
        label = Label(job=job, rank=rank, generation=generation, step=step, layout=layout)
        return label, length, checksum

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
    return sorted(slots, key=lambda slot: _age(slot.label()))


def _age(label: Label | None) -> tuple[int, int]:
    return (label.generation, label.step) if label else (-1, -1)


_inherited: tuple[int, ...] = ()


def inherit(fds: tuple[int, ...]) -> None:
    """Called in the rank, right after the fork."""
    global _inherited  # noqa: PLW0603 - a process is one rank
    _inherited = fds


def mine() -> tuple[Slot, ...]:
    """The slots of this rank; none without an agent."""
    return tuple(Slot(fd) for fd in _inherited)
