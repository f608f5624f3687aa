"""A slot holds a complete copy or none, wherever a byte is damaged and whenever the writer dies."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dtj.copies import slot, space
from dtj.copies.slot import HEADER_BYTES, Label, Slot

PAYLOAD = bytes(range(200))
HEADER_FIELDS = 80  # bytes of the header that mean anything; the rest of its page is not read


def label(step: int = 7, *, generation: int = 1) -> Label:
    return Label(job=b"j" * 16, rank=3, generation=generation, layout=b"l" * 16, step=step)


def write(target: Slot, what: Label, payload: bytes = PAYLOAD, *, dies_after: int | None = None) -> None:
    """Copy byte by byte; with `dies_after`, the writer dies after that number of bytes."""

    def fill(view: memoryview) -> None:
        for place, byte in enumerate(payload):
            if place == dies_after:
                raise KeyboardInterrupt
            view[place] = byte

    target.seal(what, target.fill(len(payload), fill))


def held(one: Slot) -> tuple[Label | None, bytes | None]:
    payload = one.payload()
    return one.label(), None if payload is None else bytes(payload)


@pytest.fixture(scope="module")
def fds() -> Iterator[tuple[int, ...]]:
    found = slot.create(3)
    yield found
    for fd in found:
        os.close(fd)


@pytest.fixture
def pair(fds: tuple[int, ...]) -> tuple[Slot, Slot]:
    for fd in fds:
        os.ftruncate(fd, 0)
    return Slot(fds[0]), Slot(fds[1])


def test_new_slot_is_empty_and_uses_no_memory(pair: tuple[Slot, Slot]) -> None:
    assert held(pair[0]) == (None, None)
    assert pair[0].allocated == 0


def test_the_next_process_finds_the_newest_copy(pair: tuple[Slot, Slot]) -> None:
    """A later copy may be larger, and smaller again."""
    for step, size in enumerate((10, 200, 3)):
        write(pair[0], label(step), PAYLOAD[:size])
        assert held(Slot(pair[0].fd)) == (label(step), PAYLOAD[:size])


@given(st.integers(0, HEADER_FIELDS + len(PAYLOAD) - 1), st.integers(1, 255))
def test_a_damaged_byte_is_noticed(fds: tuple[int, ...], place: int, change: int) -> None:
    one = Slot(fds[0])
    write(one, label())
    place += HEADER_BYTES - HEADER_FIELDS if place >= HEADER_FIELDS else 0
    byte = os.pread(fds[0], 1, place)[0]
    os.pwrite(fds[0], bytes([byte ^ change]), place)
    assert held(one)[1] is None
    assert held(one)[0] in {None, label()}, "of a damaged header nothing is believed"


@given(st.integers(0, len(PAYLOAD) - 1), st.booleans())
def test_if_the_writer_dies_the_other_slot_is_valid(fds: tuple[int, ...], after: int, again: bool) -> None:
    slots = [Slot(fd) for fd in fds]
    for each in slots:
        each.clear()
    write(slot.by_age(slots)[0], label(4))
    if again:
        write(slot.by_age(slots)[0], label(2, generation=2))
    with pytest.raises(KeyboardInterrupt):
        write(slot.by_age(slots)[0], label(6, generation=2), dies_after=after)
    oldest, newest = slot.by_age([Slot(fd) for fd in fds])
    assert held(oldest) == (None, None)
    assert held(newest) == (label(2, generation=2) if again else label(4), PAYLOAD)


def test_a_cut_payload_is_ignored(pair: tuple[Slot, Slot]) -> None:
    write(pair[0], label())
    os.ftruncate(pair[0].fd, HEADER_BYTES + len(PAYLOAD) - 1)
    assert held(pair[0])[1] is None


@pytest.mark.parametrize(
    ("files", "left"),
    [
        pytest.param({"memory.max": "1000", "memory.current": "900"}, 300, id="a limit"),
        pytest.param({"memory.max": "max", "memory.current": "900"}, 4096, id="no limit"),
        pytest.param(
            {"memory/memory.limit_in_bytes": "1000", "memory/memory.usage_in_bytes": "900"},
            400,
            id="version 1",
        ),
        pytest.param({}, 4096, id="no group"),
    ],
)
def test_memory_that_is_left(tmp_path: Path, files: dict[str, str], left: int) -> None:
    stat = "anon 5\ninactive_file 200\ntotal_inactive_file 300\n"
    (tmp_path / "memory").mkdir()
    files |= {"memory.stat": stat, "memory/memory.stat": stat, "meminfo": "MemAvailable:   4 kB\n"}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert space.bytes_left(tmp_path, tmp_path / "meminfo") == left
