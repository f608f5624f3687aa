"""When each rank copies its state to memory, and which copy all ranks load after a loss.

    copy     all ranks, after the same step, each its own state into the older of its two slots
    restore  before anything is read from the volume: the newest step of which every rank has a valid copy;
             a rank of a new pod first fetches those that its buddy keeps

The copies are an addition: if anything about one is in doubt, the newest checkpoint is used.
"""

import pickle
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch.distributed as dist

from dtj import contract
from dtj.checkpoint.checkpointer import Checkpointer
from dtj.copies import buddy, slot, space, tree
from dtj.copies.buddy import Address
from dtj.copies.slot import Age, Label, Slot
from dtj.errors import CheckpointError, DtjError
from dtj.ranks import exchange
from dtj.telemetry.say import say

# Without --memory-every: the ranks stop for copies at most this part of the time, and copies are at least so
# many seconds apart. To send a copy and to receive and check the other pod's takes processors that the ranks
# use too, about as long again.
_MOST_OF_TIME, _MOST_WITH_BUDDY = 0.03, 0.012
_LEAST_INTERVAL_S = 0.5
# The next copy waits until the buddies have the last one, so that all have one of the same step; but not for
# a slow buddy: copies in the own pod are of more use.
_BUDDY_WAIT_S = 30.0
# Of the memory that is left: as much again stays free for training to grow.
_USABLE = 0.5
_GIB = 1 << 30
_NONE = slot.age(None)
# A checksum takes 0.3 to 1 s for each GB: that of a larger copy is computed while training continues.
_SEALED_AT_ONCE = 16 << 20  # bytes
# What loading a state raises that does not fit the program.
_MISFITS = (RuntimeError, ValueError, KeyError)


@dataclass(kw_only=True, eq=False)
class MemoryCopies:
    """This rank's slots.

    is_needless  at present the state of a lost rank would come from the other ranks
    label        of this process; its layout is what all ranks have in common, but for the names of the parts
    buddy        who keeps copies of this replica, too
    """

    slots: Sequence[Slot]
    checkpointer: Checkpointer
    is_needless: Callable[[], bool]
    label: Label
    buddy: Address | None = None

    def __post_init__(self) -> None:
        self._every = self.checkpointer.settings.memory_every  # steps; None: by time; 0: never
        self._is_off = not self.slots
        self._has_space = False
        self._interval_s = _LEAST_INTERVAL_S
        self._copied_at = self.checkpointer.clock()
        self._seals_later = False  # as any rank has a large copy
        self._sealing: threading.Thread | None = None

    def wants_copy(self) -> bool:
        """A copy is due by this rank's clock; it is made once all ranks want one."""
        is_sealing = self._sealing is not None and self._sealing.is_alive()
        if self._is_off or self._every is not None or is_sealing or self.is_needless():
            return False
        age_s = self.checkpointer.clock() - self._copied_at
        waits = self.buddy is not None and age_s < _BUDDY_WAIT_S and not self._is_sent()
        return age_s >= self._interval_s and not waits

    def is_due(self, step: int) -> bool:
        """A copy is due after `step` by --memory-every; the same on every rank."""
        return bool(self._every) and step % (self._every or 1) == 0 and not self.is_needless()

    def copy(self, step: int, group: "dist.ProcessGroup | None", *, began: float) -> None:
        """Copy this rank's state after `step`. Every rank calls this after the same step.

        began  clock time at which the ranks started to prepare it
        If there is no memory for it, say so once and copy no more.
        """
        if self._every == 0 or self.is_needless() or not self.checkpointer.parts.user_parts:
            return
        if self._seals_later:
            self._wait_for_seals(group)
        packed = self._pack()
        if not self._fits(packed.length if packed else 0, group) or packed is None:
            return
        oldest = slot.by_age(self.slots)[0]
        try:
            payload = oldest.fill(packed.length, packed.fill)
        except (OSError, ValueError, RuntimeError) as error:
            self._turn_off(str(error))
            return
        what = (oldest, self._label_of(step), payload, began)
        if self._seals_later:  # no daemon: a process that ends waits for it
            self._sealing = threading.Thread(target=self._seal, args=what, name="checksum")
            self._sealing.start()
        else:
            self._seal(*what)

    def _wait_for_seals(self, group: "dist.ProcessGroup | None") -> None:
        """Until all ranks have the last copy: to replace the older one now could leave none in common."""
        if self._sealing is not None:
            self._sealing.join()
        exchange.all_gather_number(0, group=group)

    def _seal(self, filled: Slot, label: Label, payload: memoryview, began: float) -> None:
        filled.seal(label, payload)
        self._copied_at = self.checkpointer.clock()
        share = _MOST_WITH_BUDDY if self.buddy else _MOST_OF_TIME
        self._interval_s = max(_LEAST_INTERVAL_S, (self._copied_at - began) / share)

    def restore(self, group: "dist.ProcessGroup | None") -> int | None:
        """Load the newest copies that all ranks have; the step, None if there are none. Every rank calls it.

        As a restore from a checkpoint, it claims the run's folder, with the same errors.
        CheckpointError if they do not fit the program; the next start does not find them.
        """
        if self._every == 0 or self.label.generation == 1:
            return None
        self._fetch()
        held = {
            slot.age(label): each for each in self.slots if (label := each.label()) and self._is_own(label)
        }
        ages = [*sorted(held, reverse=True), _NONE, _NONE]
        newest = self.checkpointer.newest_saved()
        mine = [*ages[0], *ages[1], -1 if newest is None else newest]
        table = exchange.all_gather_numbers(mine, group=group)
        rows = [{(row[0], row[1]), (row[2], row[3])} - {_NONE} for row in table]
        saved = table[0][4]
        candidates, why = choose(rows, saved=saved)
        for age in candidates:
            state, problem = self._read(held[age])
            problems = exchange.all_gather_number(problem is not None, group=group)
            damaged = [rank for rank, has_one in enumerate(problems) if has_one]
            if not damaged:
                self.checkpointer.claim()
                self._load(state, age, saved)
                return age[1]
            why = f"the copy of step {age[1]} of rank {damaged[0]} is damaged"
        if any(rows):
            self.checkpointer.say(f"not resuming from memory: {why}")
        return None

    def _fetch(self) -> None:
        """A new pod's slots are empty: get what the buddy of the lost pod keeps."""
        if self.buddy is None or any(each.label() for each in self.slots):
            return
        try:
            buddy.fetch(self.buddy, self.label.rank, self.slots)
        except OSError as error:
            where = f"rank {self.label.rank}'s copies from {self.buddy.host}"
            say(f"cannot fetch {where}: {error}")

    def _is_sent(self) -> bool:
        return all(each.is_sent for each in self.slots if each.label())

    def _pack(self) -> tree.Packed | None:
        if self._is_off:
            return None
        try:
            return tree.Packed(self.checkpointer.rank_state())
        except DtjError as problem:
            self._turn_off(problem.what)
            return None

    def _read(self, held: Slot) -> tuple[Any, str | None]:
        payload = held.payload()
        if payload is None:
            return None, "its checksum is wrong"
        try:
            return tree.unpack(payload, self.checkpointer.parts.templates()), None
        except (CheckpointError, pickle.UnpicklingError, *_MISFITS, AttributeError) as error:
            return None, str(error)

    def _load(self, state: Any, age: Age, saved: int) -> None:
        try:
            self.checkpointer.load_rank_state(state, saved=None if saved < 0 else saved)
        except _MISFITS as error:
            for each in self.slots:
                each.clear()
            raise CheckpointError(
                f"the copy in memory of step {age[1]} does not fit the program: {error}",
                fix="none is needed: the next start uses the newest checkpoint",
            ) from error
        self.checkpointer.say(f"resuming from memory, step {age[1]}")

    def _fits(self, length: int, group: "dist.ProcessGroup | None") -> bool:
        """Whether all ranks have memory for two copies; asked before the first one only, as is their size."""
        if self._has_space:
            return True
        left = space.bytes_left()
        needed = len(self.slots) * length - sum(each.allocated for each in self.slots)
        needed = max(0, needed) * self.checkpointer.world.local_size
        has_space = left is None or needed <= _USABLE * left
        table = exchange.all_gather_numbers([has_space, length > _SEALED_AT_ONCE], group=group)
        self._has_space = all(row[0] for row in table)
        self._seals_later = any(row[1] for row in table)
        if not self._has_space:
            self._is_off, self._every = True, 0
            own = f"{needed / _GIB:.1f} GiB, {(left or 0) / _GIB:.1f} GiB are left"
            where = f"this pod needs {own}" if not has_space else "another pod has too little left"
            self.checkpointer.say(
                f"no copies in memory, after a loss ranks resume from the newest checkpoint: {where}"
            )
        return self._has_space

    def _turn_off(self, why: str) -> None:
        if not self._is_off:
            say(f"no more copies of this rank's state in memory: {why}")
        self._is_off = True

    def _label_of(self, step: int) -> Label:
        parts = sorted(self.checkpointer.parts.user_parts)
        layout = slot.digest([self.label.layout.hex(), parts])
        return replace(self.label, step=step, layout=layout)

    def _is_own(self, label: Label) -> bool:
        """It is of this job, rank and layout, whatever its age."""
        return label == replace(self._label_of(label.step), generation=label.generation)


def of_rank(
    env: Mapping[str, str], checkpointer: Checkpointer, *, is_needless: Callable[[], bool]
) -> MemoryCopies:
    """The copies of this process, which an agent has started, or not."""
    settings, world, layout = checkpointer.settings, checkpointer.world, checkpointer.strategy.layout
    same = [layout.strategy, dict(layout.sizes), world.size]
    flags = [settings.precision, str(settings.sync), str(settings.compress)]
    where = env.get(contract.BUDDY)
    return MemoryCopies(
        slots=slot.mine(),
        checkpointer=checkpointer,
        is_needless=is_needless,
        label=Label(
            job=slot.digest(env.get(contract.RUN_ID, "")),
            rank=world.rank,
            generation=int(env.get(contract.GENERATION) or 1),
            layout=slot.digest(same + flags),
        ),
        buddy=Address.parse(where) if where else None,
    )


def choose(rows: Sequence[set[Age]], *, saved: int) -> tuple[list[Age], str]:
    """The copies that all ranks have and that are not older than the checkpoint, newest first; else why not.

    rows   for each rank the copies that it holds
    saved  step of the newest checkpoint, -1 if there is none
    """
    empty = [rank for rank, ages in enumerate(rows) if not ages]
    if empty:
        return [], f"rank {empty[0]} has no copy of its state"
    common = set.intersection(*rows)
    if not common:
        return [], "the copies of the ranks are of different steps"
    found = sorted((age for age in common if age[1] >= saved), reverse=True)
    return found, f"the checkpoint of step {saved} is newer than the copies"
