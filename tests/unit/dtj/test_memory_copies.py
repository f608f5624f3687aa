"""When state is copied to memory, and what is loaded from there after a loss. One rank, no processes."""

import os
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from dtj.checkpoint.checkpointer import Checkpointer
from dtj.copies import buddy, memory_copies, slot, space
from dtj.copies.buddy import Address
from dtj.copies.memory_copies import MemoryCopies, choose
from dtj.copies.slot import Age, Label, Slot
from dtj.errors import CheckpointError
from dtj.parallel.layout import Layout
from dtj.parallel.strategy import Strategy
from dtj.ranks import exchange
from dtj.ranks.world import World
from dtj.settings import Settings


@dataclass
class Rank:
    """A model with its optimizer, as a newly forked rank has it."""

    slots: Sequence[Slot]
    run_dir: Path | None = None
    every: int | None = None
    generation: int = 1
    is_needless: bool = False
    buddy: Address | None = None
    width: int = 3
    now: float = 0.0
    said: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.model = nn.Linear(self.width, 2)
        self.optimizer = torch.optim.Adam(self.model.parameters())
        strategy = Strategy(Layout(strategy="none", sizes={}, rank=0), torch.device("cpu"))
        self.checkpointer = Checkpointer(
            settings=Settings(
                checkpoint_dir=str(self.run_dir) if self.run_dir else None, memory_every=self.every
            ),
            world=World(),
            strategy=strategy,
            clock=lambda: self.now,
            say=self.said.append,
        )
        self.checkpointer.parts.register({"model": self.model, "optimizer": self.optimizer})
        self.copies = MemoryCopies(
            slots=self.slots,
            is_needless=lambda: self.is_needless,
            label=Label(job=b"j" * 16, rank=0, generation=self.generation, layout=b"l" * 16),
            checkpointer=self.checkpointer,
        )
        self.copies.buddy = self.buddy

    def train(self) -> None:
        self.model(torch.ones(self.width)).sum().backward()
        self.optimizer.step()

    def copy(self, step: int) -> None:
        self.copies.copy(step, None, began=self.now)

    def state(self) -> dict[str, Any]:
        return self.checkpointer.parts.rank_state()


@pytest.fixture
def slots() -> Iterator[list[Slot]]:
    fds = slot.create(0)
    yield [Slot(fd) for fd in fds]
    for fd in fds:
        os.close(fd)


def assert_same(a: dict[str, Any], b: dict[str, Any]) -> None:
    torch.testing.assert_close(a, b, rtol=0, atol=0)


def test_next_process_of_the_rank_has_the_newest_state(slots: list[Slot]) -> None:
    before = Rank(slots)
    for step in (1, 2, 3):
        before.train()
        before.copy(step)
    after = Rank(slots, generation=2)
    assert after.copies.restore(None) == 3
    assert_same(after.state(), before.state())
    assert after.said == ["resuming from memory, step 3"]


def test_all_ranks_know_of_the_checkpoint_that_rank_0_finds(
    slots: list[Slot], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each notes by itself when a save in the background is done, before or after its copy of that step."""
    Rank(slots).copy(4)
    rank_1 = Rank(slots, generation=2)

    def gather(mine: list[int], *, group: None) -> list[list[int]]:
        return [[*mine[:4], 4] if len(mine) > 1 else mine, mine]

    monkeypatch.setattr(exchange, "all_gather_numbers", gather)
    assert rank_1.copies.restore(None) == 4
    assert rank_1.checkpointer.saved_step == 4


def test_damaged_copy_costs_the_steps_since_the_one_before(slots: list[Slot]) -> None:
    before = Rank(slots)
    for step in (1, 2):
        before.copy(step)
        last = os.fstat(slots[step - 1].fd).st_size
    os.pwrite(slots[1].fd, b"x", slot.HEADER_BYTES + 99)
    after = Rank(slots, generation=2)
    assert after.copies.restore(None) == 1
    os.ftruncate(slots[0].fd, last - 1)
    assert after.copies.restore(None) is None
    assert after.said[-1] == "not resuming from memory: the copy of step 1 of rank 0 is damaged"


def test_copy_that_is_damaged_on_another_rank_is_not_loaded(
    slots: list[Slot], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other rank has the same copies; only the older one has the right checksum there."""
    before = Rank(slots)
    for step in (1, 2):
        before.copy(step)
    others = iter([None, 1, 0])  # the same ages; then whether the copy, the newer first, is damaged

    def gather(numbers: list[int], *, group: None) -> list[list[int]]:
        mine, other = [int(number) for number in numbers], next(others)
        return [mine, mine if other is None else [other]]

    monkeypatch.setattr(exchange, "all_gather_numbers", gather)
    assert Rank(slots, generation=2).copies.restore(None) == 1


def test_rank_0_claims_the_folder_when_it_resumes_from_memory(
    slots: list[Slot], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Rank(slots, run_dir=tmp_path).copy(4)
    after = Rank(slots, run_dir=tmp_path, generation=2)
    claims: list[int] = []
    monkeypatch.setattr(after.checkpointer, "claim", lambda: claims.append(1))
    assert after.copies.restore(None) == 4
    assert claims == [1]


def test_newer_checkpoint_is_preferred(slots: list[Slot], tmp_path: Path) -> None:
    before = Rank(slots, run_dir=tmp_path)
    before.copy(4)
    before.checkpointer.save(5, group=None)
    after = Rank(slots, run_dir=tmp_path, generation=2)
    assert after.copies.restore(None) is None
    assert after.said == ["not resuming from memory: the checkpoint of step 5 is newer than the copies"]
    before.copy(5)
    assert after.copies.restore(None) == 5


@pytest.mark.parametrize("other", [{"job": b"x" * 16}, {"rank": 1}, {"layout": b"x" * 16}])
def test_copy_of_another_job_rank_or_layout_is_ignored(slots: list[Slot], other: dict[str, Any]) -> None:
    before = Rank(slots)
    before.copy(4)
    found = slots[0].label()
    payload = slots[0].payload()
    assert found
    assert payload
    changed = Label(**(vars(found) | other))
    kept = bytes(payload)
    slots[0].seal(changed, slots[0].fill(len(kept), lambda view: view.__setitem__(slice(None), kept)))
    assert Rank(slots, generation=2).copies.restore(None) is None


def test_copy_that_does_not_fit_the_program_is_dropped(slots: list[Slot]) -> None:
    Rank(slots).copy(4)
    after = Rank(slots, generation=2, width=5)
    with pytest.raises(CheckpointError, match="step 4 does not fit the program"):
        after.copies.restore(None)
    assert after.copies.restore(None) is None


BUDDY = Address(host="10.0.0.2", port=1, token="00" * 16)


@pytest.mark.parametrize(
    ("buddy", "interval_s"),
    [
        pytest.param(None, 20.0, id="3 % of the time"),
        pytest.param(BUDDY, 50.0, id="1.2 %, as the buddies need the processors as well"),
    ],
)
def test_copies_stop_the_ranks_for_a_small_part_of_the_time(
    slots: list[Slot], monkeypatch: pytest.MonkeyPatch, buddy: Address | None, interval_s: float
) -> None:
    rank = Rank(slots, buddy=buddy)
    assert not rank.copies.wants_copy()
    rank.now = 0.5
    assert rank.copies.wants_copy()
    monkeypatch.setattr(Slot, "seal", lambda *_: setattr(rank, "now", rank.now + 0.6))
    rank.copy(1)
    rank.now += interval_s - 0.1
    assert not rank.copies.wants_copy()
    rank.now += 0.2
    assert rank.copies.wants_copy()


def test_training_does_not_wait_for_the_checksum_of_a_large_copy(
    slots: list[Slot], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_copies, "_SEALED_AT_ONCE", 0)
    may_seal, seal = threading.Event(), Slot.seal

    def seal_later(self: Slot, label: Label, payload: memoryview) -> None:
        may_seal.wait(20)
        seal(self, label, payload)

    monkeypatch.setattr(Slot, "seal", seal_later)
    before = Rank(slots)
    before.copy(1)
    before.now = 99.0
    assert [each.label() for each in slots] == [None, None]
    assert not before.copies.wants_copy()
    may_seal.set()
    before.train()
    before.copy(2)
    before.copy(3)
    for thread in threading.enumerate():
        if thread.name == "checksum":
            thread.join()
    assert [label.step for each in slots if (label := each.label())] == [3, 2]
    after = Rank(slots, generation=2)
    assert after.copies.restore(None) == 3
    assert_same(after.state(), before.state())


def test_older_copy_is_replaced_once_all_ranks_have_the_newer_one(
    slots: list[Slot], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another rank has a large copy, whose checksum may take longer than that of this one."""
    done: list[str] = []
    seal, fill = Slot.seal, Slot.fill

    def gather(numbers: list[int], *, group: None) -> list[list[int]]:
        done.append("all")
        return [numbers, [1, 1][: len(numbers)]]

    def noted(what: str, function: Any) -> Any:
        def call(*given: Any) -> Any:
            done.append(what)
            return function(*given)

        return call

    monkeypatch.setattr(exchange, "all_gather_numbers", gather)
    monkeypatch.setattr(Slot, "seal", noted("seal", seal))
    monkeypatch.setattr(Slot, "fill", noted("fill", fill))
    rank = Rank(slots)
    rank.copy(1)
    rank.copy(2)
    for thread in threading.enumerate():
        if thread.name == "checksum":
            thread.join()
    assert done == ["all", "fill", "seal", "all", "fill", "seal"]


def test_next_copy_waits_for_the_buddy_but_not_for_a_slow_one(slots: list[Slot]) -> None:
    rank = Rank(slots, buddy=BUDDY)
    rank.copy(1)
    rank.now = 29.9
    assert not rank.copies.wants_copy()
    slots[0].mark_sent(slots[0].header())
    assert rank.copies.wants_copy()
    slots[0].mark_sent(None)
    rank.now = 30.1
    assert rank.copies.wants_copy()
    slots[0].mark_sent(slots[0].header())
    rank.copy(2)
    rank.copy(3)
    assert not any(each.is_sent for each in slots), "these are other copies"


def test_rank_of_a_new_pod_gets_what_the_buddy_keeps(
    slots: list[Slot], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = Rank(slots)
    before.train()
    before.copy(4)
    asked = []

    def fetch(address: Address, rank: int, empty: Sequence[Slot]) -> int:
        asked.append((address, rank))
        header, payload = slots[0].header(), slots[0].payload()
        assert header
        assert payload is not None
        kept = bytes(payload)
        return empty[0].receive(header, lambda view: view.__setitem__(slice(None), kept))

    monkeypatch.setattr(buddy, "fetch", fetch)
    assert Rank(slots, generation=2, buddy=BUDDY).copies.restore(None) == 4
    assert asked == [], "its agent has them"
    fds = slot.create(0)
    try:
        after = Rank([Slot(fd) for fd in fds], generation=2, buddy=BUDDY)
        assert after.copies.restore(None) == 4
    finally:
        for fd in fds:
            os.close(fd)
    assert asked == [(BUDDY, 0)]
    assert_same(after.state(), before.state())


def test_without_its_buddy_a_new_pod_uses_the_checkpoint(
    slots: list[Slot], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(buddy, "fetch", lambda *_: (_ for _ in ()).throw(ConnectionRefusedError("refused")))
    assert Rank(slots, generation=2, buddy=BUDDY).copies.restore(None) is None
    assert capfd.readouterr().err == "dtj: cannot fetch rank 0's copies from 10.0.0.2: refused\n"


def test_copies_by_number_of_steps(slots: list[Slot]) -> None:
    rank = Rank(slots, every=3)
    assert [step for step in range(1, 8) if rank.copies.is_due(step)] == [3, 6]
    rank.now = 99.0
    assert not rank.copies.wants_copy()


def test_no_copies_while_other_ranks_could_hand_over_the_state(slots: list[Slot]) -> None:
    rank = Rank(slots, is_needless=True)
    rank.now = 99.0
    assert not rank.copies.wants_copy()
    rank.copy(1)
    assert Rank(slots, generation=2).copies.restore(None) is None
    assert not Rank(slots, is_needless=True, every=1).copies.is_due(1)
    rank.is_needless = False
    assert rank.copies.wants_copy()


@pytest.mark.parametrize("every", [0, None])
def test_without_copies_nothing_is_allocated(
    slots: list[Slot], monkeypatch: pytest.MonkeyPatch, every: int | None
) -> None:
    """Switched off, or too little memory is left, which is said once."""
    monkeypatch.setattr(space, "bytes_left", lambda: 100)
    rank = Rank(slots, every=every)
    for step in (1, 2):
        rank.copy(step)
    rank.now = 99.0
    assert not rank.copies.wants_copy()
    assert sum(each.allocated for each in slots) == 0
    assert len(rank.said) == (every is None)
    assert all("no copies in memory" in said for said in rank.said)


def test_without_an_agent_there_are_no_copies() -> None:
    rank = Rank([])
    rank.now = 99.0
    assert not rank.copies.wants_copy()
    rank.copy(1)
    assert rank.copies.restore(None) is None


@pytest.mark.parametrize(
    ("rows", "saved", "expected"),
    [
        pytest.param([{(1, 4), (1, 6)}, {(1, 6), (1, 4)}], -1, [(1, 6), (1, 4)], id="newest first"),
        pytest.param([{(1, 4), (1, 6)}, {(1, 4)}], -1, [(1, 4)], id="a rank died while it copied"),
        pytest.param([{(2, 3), (1, 6)}, {(2, 3), (1, 6)}], -1, [(2, 3), (1, 6)], id="generation before step"),
        pytest.param([{(1, 6)}, {(2, 6)}], -1, [], id="the same step of two generations"),
        pytest.param([{(1, 4), (1, 6)}, {(1, 4), (1, 6)}], 5, [(1, 6)], id="not older than the checkpoint"),
        pytest.param([{(1, 4)}, set()], -1, [], id="a rank has none"),
    ],
)
def test_choice(rows: list[set[Age]], saved: int, expected: list[Age]) -> None:
    assert choose(rows, saved=saved)[0] == expected


def test_reason_for_no_choice_names_the_rank() -> None:
    assert choose([{(1, 4)}, set()], saved=-1) == ([], "rank 1 has no copy of its state")
