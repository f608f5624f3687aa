"""When state is saved, and how all ranks restore it.

`parts.py` knows what is saved, `writer.py` writes it to disk, `restore.py` reads it back.

    snapshot   the state of the parts now; with --async-save, training only waits for a copy in memory
    write      replicated state: rank 0 alone writes. Sharded state: every rank writes its shards, then rank 0
               commits
"""

import contextlib
import errno
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

from dtj.checkpoint import answers, paths, reader, restore
from dtj.checkpoint.objects import Location, ObjectPath, locate
from dtj.checkpoint.owner import NO_SCORE, Deputy, Owner
from dtj.checkpoint.parts import Parts, Rates
from dtj.checkpoint.writer import (
    Group,
    Writer,
    on_rank0,
    report,
    report_failure,
)
from dtj.errors import CheckpointError, NoSpaceError, RecipeError, SupersededError
from dtj.parallel.strategy import Strategy
from dtj.ranks.world import World
from dtj.settings import Settings

# If no flag sets an interval: a save takes milliseconds to seconds, and a minute of lost work is acceptable.
_SAVE_INTERVAL_S = 60.0
# How long the last save waits for space on a full volume (less than a save may take, see heartbeat.SAVE_S),
# and how long between two tries.
_FULL_S = 600.0
_FULL_PAUSE_S = 5.0
# In a copy in memory: what belongs to checkpoints, and to no part.
_KEPT = "dtj/kept"


@dataclass(kw_only=True, eq=False)
class Checkpointer:
    """Saves and restores `parts` and the step; `run_dir` is None if nothing is to be saved."""

    settings: Settings
    world: World
    strategy: Strategy
    clock: Callable[[], float]
    say: Callable[[str], None]

    def __post_init__(self) -> None:
        settings = self.settings
        self.parts = Parts(self.strategy)
        self.run_dir = locate(settings.checkpoint_dir) if settings.checkpoint_dir else None
        self._restored: Location | None = None
        self._resume_dir = locate(settings.resume_dir) if settings.resume_dir else None
        self._offered = NO_SCORE  # highest score since the last save; of the next checkpoint
        self._saved_at = self.clock()
        self._completes = False  # a save in the background, when the process ends
        self._writer = Writer(
            owner=Owner(self.run_dir, os.environ) if self.run_dir else None,
            keep=settings.keep,
            is_rank0=self.world.rank == 0,
            is_replicated=self.strategy.replicated,
            clock=self.clock,
        )

    @property
    def saved_step(self) -> int | None:
        """Step of the newest checkpoint that this rank knows to be committed, or None."""
        return self._writer.saved_step

    def wants_save(self) -> bool:
        """A save is due by rank 0's clock; it happens once all ranks have agreed on it."""
        if not self._writer.is_rank0 or not self.run_dir or self.settings.save_every is not None:
            return False
        return self.clock() - self._saved_at >= _SAVE_INTERVAL_S

    def is_due(self, step: int) -> bool:
        """A save is due after `step`, by --save-every or because of a score; the same on every rank."""
        every = self.settings.save_every
        return (every is not None and step % every == 0) or self.has_offer

    @property
    def has_offer(self) -> bool:
        """A score asks for a checkpoint of the present step; the same on every rank."""
        return self._offered > NO_SCORE

    def offer(self, score: float, *, group: Group) -> None:
        """Save after this step, and keep that checkpoint, if no written checkpoint has as high a score.

        Every rank calls this. Rank 0 decides, because only rank 0 knows which checkpoints were written.
        """
        if not (owner := self._writer.owner):
            return
        best = owner.best
        highest = max(self._offered, self._writer.score, best["score"] if best else NO_SCORE)
        is_highest, score = on_rank0(lambda: (score > highest, score), group)
        if is_highest:  # the score of rank 0: all ranks must find a save due
            self._offered = score

    def save(
        self,
        step: int,
        *,
        group: Group,
        at_once: bool = False,
        last: bool = False,
        may_wait: Callable[[], bool] = lambda: False,
    ) -> Location | None:
        """Save the state after `step` unless it is saved already; the folder, None if nothing is to be saved.

        Every rank calls this after the same step. If the disk fails, older checkpoints stay as they are and
        this prints a warning; with `last` it raises CheckpointError, since no later save can replace it.
        SupersededError on rank 0 at least, if another process owns the folder now.
        Only after a last save, and only on rank 0, does a return mean that the checkpoint is on disk.

        at_once   not in the background
        may_wait  on rank 0: if the volume is full, a last save may wait for space
        """
        score, self._offered = self._offered, NO_SCORE
        if not self.run_dir or not self.parts.user_parts:
            return None
        with answers.watched(self.say):
            self._writer.wait()
            self._report_failure()
            if self.saved_step != step:
                began = self.clock()
                snapshot = self.parts.snapshot(step, group)
                self._saved_at = self.clock()
                in_background = self.settings.async_save and not (at_once or last)
                if in_background:
                    self._complete_at_exit()
                how = self._writer.start if in_background else self._writer.write
                write = partial(how, snapshot, score=score, began=began, group=group)
                write()
                if last:
                    self._wait_for_space(write, group, may_wait)
        if last and self._writer.failure:
            raise self._writer.failure
        self._report_failure()
        return self.run_dir / paths.name_of(step)

    def _complete_at_exit(self) -> None:
        """A program may leave its loop, or end, while a save is under way in the background."""
        if not self._completes:
            self._completes = True
            # Not atexit: by then the thread pools that a store may need are closed.
            threading._register_atexit(self._complete, os.getpid())  # type: ignore[attr-defined]

    def _complete(self, pid: int) -> None:
        """Wait for the save, unless the program failed: a rank that it needs may be lost, too.

        pid  of the rank; a process that its program forked has none of its threads
        """
        if os.getpid() != pid or getattr(sys, "last_value", None) is not None:
            return
        self._writer.wait()
        if failure := self._writer.failure:
            self.say(str(failure))

    def _wait_for_space(self, write: Callable[[], None], group: Group, may_wait: Callable[[], bool]) -> None:
        """Repeat a last save while the volume is full: only memory holds this state, and a restart loses it.

        RecipeError after some minutes, because a restart would find the volume full, too.
        """
        began = self.clock()

        def goes_on(failure: NoSpaceError) -> bool:
            if not may_wait():
                return False
            if self.clock() - began < _FULL_S:
                return True
            raise RecipeError(
                f"{failure.what} (tried for {_FULL_S / 60:.0f} minutes)",
                fix=f"{failure.fix}; then start the job again: it continues from its newest checkpoint",
            )

        deciding = None if self.strategy.replicated else group  # if rank 0 alone writes, it alone knows
        has_said = False
        while isinstance(failure := self._writer.failure, NoSpaceError):
            if not on_rank0(partial(goes_on, failure), deciding):
                return
            if not has_said:
                self.say(f"{failure.what}; tried again for {_FULL_S / 60:.0f} minutes\n  fix: {failure.fix}")
            has_said = True
            time.sleep(_FULL_PAUSE_S)
            write()

    def act_for_rank_0(self) -> None:
        """Rank 0 may be lost, and this rank holds the state: `save` writes now, and removes nothing."""
        if self.run_dir:
            self._writer.is_rank0 = True
            self._writer.saved_step = self.newest_saved()  # rank 0 may be lost since its last save began
            self._writer.owner = Deputy(self.run_dir, os.environ, rank=self.world.rank)
            self._writer.keep = sys.maxsize

    def claim(self) -> None:
        """Make rank 0 the owner of the run's folder; SupersededError if a later process has claimed it.

        If the disk fails, the log says so, and the next save tries again. RecipeError if no retry can help.
        """
        with answers.watched(self.say):
            self._claim()

    def _claim(self) -> None:
        if self._writer.is_rank0 and self._writer.owner:
            try:
                with answers.awaited(self.run_dir):
                    self._writer.owner.claim()
            except OSError as error:
                if isinstance(self.run_dir, ObjectPath) and error.errno in {errno.ENOENT, errno.EROFS}:
                    raise RecipeError(
                        f"no checkpoint can be written to {self.run_dir}: there is no such bucket, or it can "
                        "only be read",
                        fix="create the bucket, or correct --checkpoint",
                    ) from error
                why = error.strerror or error
                what = f"cannot write to {self.run_dir}: {why}"
                self.say(f"{what}; training continues, each save tries again")
                report_failure(what)
            else:
                report_failure(None)

    def restore(self, group: Group) -> int | None:
        """Claim the folder, and load the newest checkpoint into the parts; its step, None if there is none.

        A rank that does not see the file gets the state from rank 0, but only a rank that sees the volume can
        read shards. If they are damaged, all ranks load the checkpoint before it.
        SupersededError on every rank, if a process that started later has claimed the folder.
        """
        with answers.watched(self.say):
            found = restore.newest(
                self._candidates(), group, load=self._load, say=self.say, skipped=self._note_damaged
            )
        if found is None:
            return None
        given_rates = dict(self.parts.rates)
        self.parts.load_rates(found.state.get("rates", {}))
        for name, was, given in _other_rates(self.parts.rates, given_rates):
            self.say(
                f"{name} continues with the learning rate of the checkpoint, {was:g}; "
                f"the program gives {given:g}\n"
                "  to change it: set lr in its param_groups after run.state; with a schedule also initial_lr "
                "there, and its base_lrs"
            )
        if self._writer.is_rank0:
            report(found.folder)
        step: int = found.state["step"]
        self._restored = found.folder
        if found.folder.parent == self.run_dir:  # not a checkpoint of an earlier run
            self._writer.saved_step = step
        return step

    def _candidates(self) -> Iterator[Location]:
        """On rank 0."""
        self._claim()
        yield from reader.candidates(self.run_dir, self._resume_dir)

    def _note_damaged(self, checkpoint: Location) -> None:
        if (owner := self._writer.owner) and checkpoint.parent == self.run_dir:
            owner.damaged.add(checkpoint.name)
            if owner.best and paths.name_of(owner.best["step"]) == checkpoint.name:
                owner.best = None

    def _load(self, found: reader.Found) -> None:
        self.parts.load(found.state, found.shards)

    def report_if_nothing_is_left(self, step: int, total: int) -> None:
        """If a finished run is started again, say why it ends immediately, and how to train further."""
        if step < total or not self._restored or paths.step_of(self._restored.name) != step:
            return
        is_own = self._restored.parent == self.run_dir
        self.say(
            "nothing left to train in this loop: "
            f"{self._restored} is at step {step}, run.steps ends at {total}\n"
            "  to train further: ask for more steps, in run.steps or in the recipe (epochs=, steps=). The "
            "learning rate stays that of the checkpoint, and so does the total of a schedule that stores it, "
            "such as T_max of CosineAnnealingLR\n"
            f"  to start from step 0: {'use another --checkpoint folder' if is_own else 'omit --resume'}"
        )

    def whole_state(self, step: int) -> dict[str, Any]:
        """What another rank needs to continue after `step`. Only if every rank holds the whole state."""
        more = {"offered": self._offered, "gradients": self.parts.gradients()}
        return self.parts.state(step) | more

    def load_whole_state(self, state: dict[str, Any]) -> None:
        """Load what `whole_state` of another rank returned."""
        self.parts.load(state, None)
        self.parts.load_gradients(state["gradients"])
        self.parts.load_rates(state["rates"])
        self._offered = state["offered"]
        self._find_saved(state["step"])

    def rank_state(self) -> dict[str, Any]:
        """What this rank alone needs to continue, for a copy in memory."""
        kept = {"offered": self._offered, "rates": self.parts.rates}
        return self.parts.rank_state() | {_KEPT: kept}

    def load_rank_state(self, state: dict[str, Any], *, saved: int | None) -> None:
        """Load what `rank_state` returned.

        saved  what `newest_saved` returned on rank 0: ranks that know of different saves would not save
               together
        """
        self.parts.load_rank_state(state)
        kept = state[_KEPT]
        self.parts.load_rates(kept["rates"])
        self._offered = kept["offered"]
        self._writer.saved_step = saved
        if committed := self._committed():  # no process of a new pod has reported it
            report(committed[0])

    def newest_saved(self) -> int | None:
        """Step of the newest checkpoint by its name, which may be damaged; on rank 0 only, else None."""
        return _newest(self._committed())

    def _committed(self) -> list[Location] | None:
        """The checkpoints in the folder, the newest first; None on other ranks and if listing fails.

        Without those that were found damaged when this process was restored.
        """
        if self._writer.is_rank0 and (owner := self._writer.owner):
            with contextlib.suppress(CheckpointError):
                return [each for each in reader.committed(owner.run_dir) if each.name not in owner.damaged]
        return None

    def _find_saved(self, step: int) -> None:
        """Rank 0 takes over after `step`: only the folder tells what its process before has saved."""
        saved = [each for each in self._committed() or () if (paths.step_of(each.name) or 0) <= step]
        if saved:
            self._writer.saved_step = _newest(saved)
            report(saved[0])

    def _report_failure(self) -> None:
        failure, self._writer.failure = self._writer.failure, None
        if isinstance(failure, SupersededError):
            raise failure
        if failure is not None:
            newest = f"newest checkpoint: {f'of step {self.saved_step}' if self.saved_step else 'none yet'}"
            if self._writer.is_rank0:
                report_failure(f"{failure.what} ({newest}); {failure.fix}")
            self.say(f"{failure.what}; training continues ({newest})\n  fix: {failure.fix}")


def _other_rates(before: Rates, now: Rates) -> Iterator[tuple[str, float, float]]:
    """For each optimizer the first rate that the program gives now and did not give before."""
    for name, rates in now.items():
        pairs = zip(before.get(name, ()), rates, strict=False)
        different = ((name, was, given) for was, given in pairs if was and given and was != given)
        yield from islice(different, 1)


def _newest(committed: list[Location] | None) -> int | None:
    """Step of the newest of these checkpoints."""
    return paths.step_of(committed[0].name) if committed else None
