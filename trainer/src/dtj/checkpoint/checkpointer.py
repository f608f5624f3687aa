"""When state is saved and how all ranks come by it: the collective side of checkpoints.

`parts.py` knows what is saved; `save.py`, `load.py` and `sharded.py` touch the disk and know little of ranks.

    snapshot   what the parts hold now; with --async-save a copy in memory, all that training waits for
    write      replicated state: rank 0 alone. Sharded state: every rank its shards, then rank 0 commits

Groups are arguments: those of a run change whenever a lost rank is replaced.
"""

import io
import math
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import torch
import torch.distributed as dist

from dtj.checkpoint import layout, load, save
from dtj.checkpoint.parts import Parts, Snapshot
from dtj.errors import CheckpointError, DtjError
from dtj.parallel.strategy import Strategy
from dtj.settings import Settings
from dtj.telemetry import report_pipe
from dtj.world import World

# Where the flags name no interval: a save costs milliseconds to seconds, a lost minute is bearable.
_SAVE_INTERVAL_S = 60.0

Group: TypeAlias = "dist.ProcessGroup | None"
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Best:
    """The checkpoint that is kept besides the newest ones."""

    step: int
    score: float


class Checkpointer:
    """Saves and restores `parts` and the step.

    saved_step  of the newest checkpoint that this run knows to be committed; None where there is none
    """

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
        self.saved_step: int | None = None
        self._resume_dir = Path(settings.resume_dir) if settings.resume_dir else None
        self._every = settings.save_every
        self._keep = settings.keep
        self._in_background = settings.async_save
        self._is_first = world.rank == 0
        self._is_replicated = strategy.replicated
        self._clock = clock
        self._say = say
        self._best: Best | None = None  # of the checkpoints that could be written
        self._offered = -math.inf  # score of the next save
        self._under_way = -math.inf  # score of the save under way
        self._saved_at = clock()
        self._began = clock()  # the save under way, or the last one
        self._writer: threading.Thread | None = None
        self._writer_group: Group = None
        self._failure: CheckpointError | None = None

    def wants_save(self) -> bool:
        """Rank 0's clock says that a save is due; it happens once all ranks know."""
        if not self._is_first or not self.run_dir or self._every is not None:
            return False
        return self._clock() - self._saved_at >= _SAVE_INTERVAL_S

    def is_due(self, step: int) -> bool:
        """The flag `save_every` says so, or a score was offered; on every rank alike."""
        return (self._every is not None and step % self._every == 0) or self._offered > -math.inf

    def offer(self, score: float, *, group: Group) -> None:
        """Save now, and keep that, if the score is higher than that of any checkpoint that could be written.

        Every rank calls this; rank 0 decides, which alone knows of a disk that failed.
        """
        if self.run_dir:
            self._best, is_highest = _from_first(lambda: (self._best, score > self._highest), group)
            self._offered = score if is_highest else self._offered

    def save(self, step: int, *, group: Group, last: bool = False) -> Path | None:
        """Save the state after `step`, unless that is done; None where there is nowhere or nothing to save.

        Every rank calls this after the same step. A disk that fails costs a warning and leaves the older
        checkpoints as they are; with `last`, when there is no later one to make up for it, it raises
        CheckpointError. Only rank 0's return after a last save means that the disk has it.
        """
        offered, self._offered = self._offered, -math.inf
        if not self.run_dir or not self.parts.named:
            return None
        self._wait_for_writer()
        self._tell_failure()
        if self.saved_step != step:
            best = Best(step=step, score=offered) if offered > -math.inf else self._best
            self._under_way = offered
            self._began = self._clock()
            snapshot = self.parts.snapshot(step, group)
            self._saved_at = self._clock()
            if self._in_background and not last:
                self._start_writer(snapshot.copied(), group, best)
            else:
                self._try_to_write(snapshot, group, best)
        if last and self._failure:
            raise self._failure
        self._tell_failure()
        return self.run_dir / layout.name_of(step)

    def restore(self, group: Group) -> int | None:
        """Load the newest checkpoint into the parts; its step, None where there is none.

        Rank 0 reads and all get the same bytes: unless there are shards, only rank 0 needs the volume.
        """
        found = _from_first(lambda: load.find(self.run_dir, self._resume_dir, warn=self._say), group)
        if found is None:
            return None
        self._say(f"resuming from {found.folder}")
        self._report(found.folder)
        state = load.parse(found.data)
        self.parts.load(state, found.shards)
        step: int = state["step"]
        if found.folder.parent == self.run_dir:  # not of an earlier run
            self.saved_step = step
            self._take_over(state)
        return step

    def pack(self, step: int) -> bytes:
        """The state as it is now, for another rank. Only where every rank holds all of it."""
        buffer = io.BytesIO()
        torch.save(_with(self._best, self.parts.state(step)) | {"offered": self._offered}, buffer)
        return buffer.getvalue()

    def unpack(self, data: bytes) -> None:
        """Take over what another rank packed."""
        state = load.parse(data)
        self.parts.load(state, None)
        self._take_over(state)
        self._offered = state["offered"]

    def _take_over(self, state: dict[str, Any]) -> None:
        if best := state.get("best"):
            self._best = Best(**best)

    @property
    def _highest(self) -> float:
        """Score of the best checkpoint, were all saves that are asked for and under way to succeed."""
        return max(self._offered, self._under_way, self._best.score if self._best else -math.inf)

    def _start_writer(self, snapshot: Snapshot, group: Group, best: Best | None) -> None:
        if group is not None and not self._is_replicated and self._writer_group is None:
            # Two threads must not share a group. Ranks with shards are never replaced: one for the whole run.
            self._writer_group = dist.new_group(backend="gloo")  # type: ignore[assignment]
        self._writer = threading.Thread(
            target=self._try_to_write,
            args=(snapshot, self._writer_group, best),
            name="checkpoint",
            daemon=True,
        )
        self._writer.start()

    def _wait_for_writer(self) -> None:
        if self._writer is not None:
            self._writer.join()
            self._writer = None

    def _try_to_write(self, snapshot: Snapshot, group: Group, best: Best | None) -> None:
        """A failure is kept for `save`, which every rank enters at the same step."""
        try:
            folder = self._write(snapshot, group, best)
        except CheckpointError as error:
            self._failure = error
            return
        else:
            self._failure, self.saved_step, self._best = None, snapshot.step, best
        finally:
            self._under_way = -math.inf
        if folder is not None:
            self._report(folder, step=snapshot.step, saveSeconds=round(self._clock() - self._began, 3))

    def _write(self, snapshot: Snapshot, group: Group, best: Best | None) -> Path | None:
        """Where ranks hold shards all write, and where one cannot, all raise its error; else rank 0 alone."""
        assert self.run_dir
        run_dir, step = self.run_dir, snapshot.step
        if self._is_replicated:
            if not self._is_first:
                return None
            save.prepare(run_dir, step)
            return self._commit(run_dir, snapshot, best)
        from dtj.checkpoint import sharded  # noqa: PLC0415 - half a second of imports that DDP does not need

        _from_first(lambda: save.prepare(run_dir, step), group)
        try:
            sharded.write(run_dir, step, snapshot.shards, group=group)
        except CheckpointError:
            if self._is_first:
                save.abandon(run_dir, step)
            raise
        return _from_first(lambda: self._commit(run_dir, snapshot, best), group)

    def _commit(self, run_dir: Path, snapshot: Snapshot, best: Best | None) -> Path:
        kept = best.step if best else None
        return save.commit(run_dir, snapshot.step, _with(best, snapshot.tree), keep=self._keep, best=kept)

    def _report(self, newest: Path, **more: float) -> None:
        """To the agent."""
        if self._is_first:
            report_pipe.send(
                {"checkpoint": {"step": layout.step_of(newest.name), "path": str(newest)}} | more
            )

    def _tell_failure(self) -> None:
        if self._failure is not None:
            good = (
                f"the last good one is of step {self.saved_step}" if self.saved_step else "there is none yet"
            )
            self._say(f"{self._failure.what}; {good}, training goes on\n  fix: {self._failure.fix}")
            self._failure = None


def _with(best: Best | None, tree: dict[str, Any]) -> dict[str, Any]:
    """A state also says which checkpoint is kept besides the newest."""
    return tree | {"best": vars(best) if best else None}


def _from_first(act: Callable[[], T], group: Group) -> T:
    """What rank 0 finds, on every rank; or its error."""
    shared: list[Any] = [None, None]
    if group is None or dist.get_rank(group) == 0:
        try:
            shared[0] = act()
        except DtjError as error:
            shared[1] = error
    if group is not None:
        dist.broadcast_object_list(shared, src=0, group=group)
    if shared[1] is not None:
        raise shared[1]
    found: T = shared[0]
    return found
