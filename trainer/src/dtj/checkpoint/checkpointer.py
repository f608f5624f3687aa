"""When state is saved, and how all ranks come by it.

`parts.py` knows what is saved, `writer.py` brings it to the disk, `load.py` finds it there.

    snapshot   what the parts hold now; with --async-save a copy in memory, all that training waits for
    write      replicated state: rank 0 alone. Sharded state: every rank its shards, then rank 0 commits
"""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from dtj.checkpoint import paths, reader
from dtj.checkpoint.parts import Parts
from dtj.checkpoint.writer import NO_SCORE, Best, Group, Writer, on_rank0, report, with_best
from dtj.parallel.strategy import Strategy
from dtj.settings import Settings
from dtj.world import World

# Where the flags name no interval: a save costs milliseconds to seconds, a lost minute is bearable.
_SAVE_INTERVAL_S = 60.0


class Checkpointer:
    """Saves and restores `parts` and the step; `run_dir` is None where nothing is saved."""

    def __init__(
        self,
        *,
        settings: Settings,
        world: World,
        strategy: Strategy,
        clock: Callable[[], float],
        say: Callable[[str], None],
    ) -> None:
        self.parts = Parts(strategy)
        self.run_dir = Path(settings.checkpoint_dir) if settings.checkpoint_dir else None
        self._restored: Path | None = None
        self._resume_dir = Path(settings.resume_dir) if settings.resume_dir else None
        self._every = settings.save_every
        self._in_background = settings.async_save
        self._is_first = world.rank == 0
        self._clock = clock
        self._say = say
        self._offered = NO_SCORE  # score of the next save
        self._saved_at = clock()
        self._writer = Writer(
            self.run_dir or Path(),
            keep=settings.keep,
            is_rank0=self._is_first,
            is_replicated=strategy.replicated,
            clock=clock,
        )

    @property
    def saved_step(self) -> int | None:
        """Of the newest checkpoint that this rank knows to be committed; None where there is none."""
        return self._writer.saved_step

    def wants_save(self) -> bool:
        """Rank 0's clock says that a save is due; it happens once all ranks know."""
        if not self._is_first or not self.run_dir or self._every is not None:
            return False
        return self._clock() - self._saved_at >= _SAVE_INTERVAL_S

    def is_due(self, step: int) -> bool:
        """The flag `save_every` says so, or a score was offered; on every rank alike."""
        return (self._every is not None and step % self._every == 0) or self._offered > NO_SCORE

    def offer(self, score: float, *, group: Group) -> None:
        """Save now, and keep that, if the score is higher than that of any checkpoint that could be written.

        Every rank calls this; rank 0 decides, which alone knows of a disk that failed.
        """
        if not self.run_dir:
            return
        writer = self._writer
        is_highest, writer.best = on_rank0(
            lambda: (score > max(self._offered, writer.highest), writer.best), group
        )
        if is_highest:
            self._offered = score

    def save(self, step: int, *, group: Group, last: bool = False) -> Path | None:
        """Save the state after `step`, unless that is done; None where there is nowhere or nothing to save.

        Every rank calls this after the same step. A disk that fails costs a warning and leaves the older
        checkpoints as they are; with `last`, when there is no later one to make up for it, it raises
        CheckpointError. Only rank 0's return after a last save means that the disk has it.
        """
        score, self._offered = self._offered, NO_SCORE
        if not self.run_dir or not self.parts.user_parts:
            return None
        self._writer.wait()
        self._report_failure()
        if self.saved_step != step:
            began = self._clock()
            snapshot = self.parts.snapshot(step, group)
            self._saved_at = self._clock()
            in_background = self._in_background and not last
            write = self._writer.start if in_background else self._writer.write
            write(snapshot, score=score, began=began, group=group)
        if last and self._writer.failure:
            raise self._writer.failure
        self._report_failure()
        return self.run_dir / paths.name_of(step)

    def restore(self, group: Group) -> int | None:
        """Load the newest checkpoint into the parts; its step, None where there is none.

        Rank 0 reads and all get the same bytes: unless there are shards, only rank 0 needs the volume.
        """
        found = on_rank0(lambda: reader.find(self.run_dir, self._resume_dir, warn=self._say), group)
        if found is None:
            return None
        self._say(f"resuming from {found.folder}")
        if self._is_first:
            report(found.folder)
        state = reader.parse(found.data)
        self.parts.load(state, found.shards)
        step: int = state["step"]
        self._restored = found.folder
        if found.folder.parent == self.run_dir:  # not of an earlier run
            self._writer.saved_step = step
            self._take_over(state)
        return step

    def report_if_nothing_is_left(self, step: int, total: int) -> None:
        """Whoever starts a finished run again learns why it ends at once, and what to do."""
        if step < total or not self._restored or paths.step_of(self._restored.name) != step:
            return
        is_own = self._restored.parent == self.run_dir
        self._say(
            f"nothing left to train in this loop: {self._restored} is of step {step}, {total} are asked for\n"
            "  to go on: ask for more, with run.steps or as the recipe counts them (epochs=, steps=)\n"
            f"  to begin anew: {'name another --checkpoint folder' if is_own else 'leave out --resume'}"
        )

    def pack(self, step: int) -> bytes:
        """The state as it is now, for another rank. Only where every rank holds all of it."""
        buffer = io.BytesIO()
        state = with_best(self._writer.best, self.parts.state(step))
        torch.save(state | {"offered": self._offered}, buffer)
        return buffer.getvalue()

    def unpack(self, data: bytes) -> None:
        """Take over what another rank packed."""
        state = reader.parse(data)
        self.parts.load(state, None)
        self._take_over(state)
        self._offered = state["offered"]

    def _take_over(self, state: dict[str, Any]) -> None:
        if best := state.get("best"):
            self._writer.best = Best(**best)

    def _report_failure(self) -> None:
        failure, self._writer.failure = self._writer.failure, None
        if failure is not None:
            good = (
                f"the last good one is of step {self.saved_step}" if self.saved_step else "there is none yet"
            )
            self._say(f"{failure.what}; {good}, training goes on\n  fix: {failure.fix}")
