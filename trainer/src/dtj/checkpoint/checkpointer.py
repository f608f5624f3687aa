"""When state is saved and how all ranks come by it: the collective side of checkpoints.

`save.py`, `load.py` and `sharded.py` touch the disk and know little of ranks; this stands between them and
`run.py`.

    snapshot   what the parts hold now; with --async-save a copy in memory, all that training waits for
    write      replicated state: rank 0 alone. Sharded state: every rank its shards, then rank 0 commits
"""

import copy
import io
import math
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist

from dtj.checkpoint import layout, load, save
from dtj.errors import CheckpointError, RecipeError
from dtj.parallel.strategy import Strategy
from dtj.settings import Settings
from dtj.telemetry import report_pipe
from dtj.world import World

# Where the flags name no interval: a save costs milliseconds to seconds, a lost minute is bearable.
_SAVE_INTERVAL_S = 60.0


class Stateful(Protocol):
    """What can be saved: models, optimizers, schedules, feeds."""

    def state_dict(self) -> Any: ...
    def load_state_dict(self, state: Any, /) -> Any: ...


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """State after a step: on rank 0 the tree (empty on the others), and this rank's shards by key."""

    step: int
    tree: dict[str, Any]
    shards: dict[str, torch.Tensor]


@dataclass(frozen=True, kw_only=True)
class Best:
    """The checkpoint that is kept besides the newest ones."""

    step: int
    score: float


class Checkpointer:
    """Saves and restores named parts and the step, which is all: the random generators follow from it.

    parts   what `run.state` names; a checkpoint must hold exactly these
    extras  what flags add (the loss scale of fp16, an outer optimizer): restored where the checkpoint has it
    """

    def __init__(
        self,
        *,
        settings: Settings,
        world: World,
        strategy: Strategy,
        group: "dist.ProcessGroup | None",
        clock: Callable[[], float],
        say: Callable[[str], None],
    ) -> None:
        self.run_dir = Path(settings.checkpoint_dir) if settings.checkpoint_dir else None
        self.parts: dict[str, Stateful] = {}
        self.extras: dict[str, Stateful] = {}
        self.best: Best | None = None
        self._offered = -math.inf
        self._resume_dir = Path(settings.resume_dir) if settings.resume_dir else None
        self._every = settings.save_every
        self._keep = settings.keep
        self._in_background = settings.async_save
        self._world = world
        self._strategy = strategy
        self._group = group
        self._clock = clock
        self._say = say
        self.saved_step: int | None = None
        self._saved_at = clock()
        self._began = clock()  # the save under way, or the last one
        self._writer: threading.Thread | None = None
        self._writer_group: dist.ProcessGroup | None = None
        self._failure: CheckpointError | None = None

    def wants_save(self) -> bool:
        """Rank 0's clock says that a save is due; it happens once all ranks know."""
        if self._world.rank != 0 or not self.run_dir or self._every is not None:
            return False
        return self._clock() - self._saved_at >= _SAVE_INTERVAL_S

    def is_due(self, step: int) -> bool:
        """The flag `save_every` says so, on every rank alike."""
        return self._every is not None and step % self._every == 0

    def offer(self, score: float) -> bool:
        """The score, the same on every rank, is the highest so far: the next save is to be kept for it."""
        if score <= max(self._offered, self.best.score if self.best else -math.inf):
            return False
        self._offered = score
        return True

    def save(self, step: int, *, last: bool = False) -> Path | None:
        """Save the state after `step`, unless that is done; None where there is nowhere or nothing to save.

        Every rank calls this after the same step. A disk that fails costs a warning and leaves the older
        checkpoints as they are; with `last`, when there is no later one to make up for it, it raises
        CheckpointError. Only rank 0's return after a last save means that the disk has it.
        """
        if not self.run_dir or not self.parts:
            return None
        self._wait_for_writer()
        self._tell_failure()
        folder = self.run_dir / layout.name_of(step)
        if self.saved_step != step:
            if self._offered > -math.inf:
                self.best, self._offered = Best(step=step, score=self._offered), -math.inf
            self._began = self._clock()
            snapshot = self._snapshot(step)
            self._saved_at = self._clock()
            if self._in_background and not last:
                self._start_writer(snapshot)
            else:
                self._try_to_write(snapshot, self._group)
        if last and self._failure:
            raise self._failure
        self._tell_failure()
        return folder

    def restore(self) -> int | None:
        """Load the newest checkpoint into the parts; its step, None where there is none."""
        found = self._read()
        if found is None:
            return None
        state = load.parse(found.data)
        self._load(state, found.folder)
        step: int = state["step"]
        if self.run_dir and (self.run_dir / layout.name_of(step)).exists():
            self.saved_step = step
            if best := state.get("best"):
                self.best = Best(**best)
        return step

    def pack(self, step: int) -> bytes:
        """The parts as they are now, for another rank. Only where every rank holds all of them."""
        state = self._tree(step, {n: p.state_dict() for n, p in (self.parts | self.extras).items()})
        buffer = io.BytesIO()
        torch.save(state, buffer)
        return buffer.getvalue()

    def unpack(self, data: bytes) -> None:
        """Take over what another rank packed."""
        self._load(load.parse(data), None)

    def _load(self, state: dict[str, Any], folder: Path | None) -> None:
        """folder: where the shards of the state lie, if it has some."""
        self._check_names(state["parts"])
        extras = state.get("extras", {})
        everything = self.parts | {name: part for name, part in self.extras.items() if name in extras}
        loaded = self._here(state["parts"] | extras, everything, folder)
        for name, part in everything.items():
            try:
                part.load_state_dict(loaded[name])
            except (RuntimeError, ValueError, KeyError) as error:
                raise RecipeError(
                    f"{name} does not fit the checkpoint of step {state['step']}: {str(error).strip()}",
                    fix="build the same model and optimizer, or start a new run without the checkpoint",
                ) from error

    def _tree(self, step: int, parts: dict[str, Any]) -> dict[str, Any]:
        """What state.pt holds."""
        save.check_loadable(parts, "state")
        return {
            "step": step,
            "parts": {name: parts[name] for name in self.parts},
            "extras": {name: parts[name] for name in self.extras},
            "best": vars(self.best) if self.best else None,
        }

    def _snapshot(self, step: int) -> Snapshot:
        if self._strategy.replicated and self._world.rank != 0:
            return Snapshot(step=step, tree={}, shards={})
        parts: Any = {name: part.state_dict() for name, part in (self.parts | self.extras).items()}
        shards: dict[str, torch.Tensor] = {}
        if not self._strategy.replicated:
            from dtj.checkpoint import sharded  # noqa: PLC0415 - half a second of imports that DDP does not need

            parts, shards = sharded.split(parts)
            everyone = self._gather(parts)
            if self._world.rank != 0:
                return Snapshot(step=step, tree={}, shards=shards)
            parts = sharded.merge(everyone)
        return Snapshot(step=step, tree=self._tree(step, parts), shards=shards)

    def _start_writer(self, snapshot: Snapshot) -> None:
        if self._group is not None and self._writer_group is None:  # two threads must not share a group
            self._writer_group = dist.new_group(backend="gloo")  # type: ignore[assignment]
        stage = Snapshot(step=snapshot.step, tree=_copied(snapshot.tree), shards=_copied(snapshot.shards))
        self._writer = threading.Thread(
            target=self._try_to_write, args=(stage, self._writer_group), name="checkpoint", daemon=True
        )
        self._writer.start()

    def _wait_for_writer(self) -> None:
        if self._writer is not None:
            self._writer.join()
            self._writer = None

    def _try_to_write(self, snapshot: Snapshot, group: "dist.ProcessGroup | None") -> None:
        """A failure is kept for `save`, which every rank enters at the same step."""
        assert self.run_dir
        try:
            if self._strategy.replicated:
                folder = self._commit(snapshot) if self._world.rank == 0 else None
            else:
                folder = self._write_together(snapshot, group)
        except CheckpointError as error:
            self._failure = error
            return
        self._failure, self.saved_step = None, snapshot.step
        if folder:
            done = {"step": snapshot.step, "path": str(folder)}
            took_s = round(self._clock() - self._began, 3)
            report_pipe.send({"step": snapshot.step, "checkpoint": done, "saveSeconds": took_s})

    def _commit(self, snapshot: Snapshot, *, prepared: bool = False) -> Path:
        assert self.run_dir
        if not prepared:
            save.prepare(self.run_dir, snapshot.step)
        best = self.best.step if self.best else None
        return save.commit(self.run_dir, snapshot.step, snapshot.tree, keep=self._keep, best=best)

    def _write_together(self, snapshot: Snapshot, group: "dist.ProcessGroup | None") -> Path | None:
        """Every rank writes its shards. Where one cannot, all raise the same error."""
        from torch.distributed.checkpoint.api import CheckpointException  # noqa: PLC0415

        from dtj.checkpoint import sharded  # noqa: PLC0415

        assert self.run_dir
        run_dir, step = self.run_dir, snapshot.step
        self._on_rank_0(lambda: save.prepare(run_dir, step), group)
        try:
            sharded.write(run_dir / layout.pending_name_of(step), snapshot.shards, group=group)
        except CheckpointException as error:
            if self._world.rank == 0:
                save.abandon(run_dir, step)
            cause = next(iter(error.failures.values()))[0]
            raise CheckpointError(
                f"checkpoint {run_dir / layout.name_of(step)} could not be written: {cause}",
                fix="check that the volume is mounted on every node, writable for this user and has space",
            ) from error
        return self._on_rank_0(lambda: self._commit(snapshot, prepared=True), group)

    def _on_rank_0(self, act: Callable[[], Path], group: "dist.ProcessGroup | None") -> Path:
        shared: list[Any] = [None, None]
        if self._world.rank == 0:
            try:
                shared[0] = str(act())
            except CheckpointError as error:
                shared[1] = error
        if group is not None:
            dist.broadcast_object_list(shared, src=0, group=group)
        if shared[1]:
            raise shared[1]
        return Path(shared[0])

    def _tell_failure(self) -> None:
        if self._failure is not None:
            good = (
                f"the last good one is of step {self.saved_step}" if self.saved_step else "there is none yet"
            )
            self._say(f"{self._failure.what}; {good}, training goes on\n  fix: {self._failure.fix}")
            self._failure = None

    def _here(self, whole: dict[str, Any], parts: Mapping[str, Any], folder: Path | None) -> dict[str, Any]:
        """What this rank needs of a state, whoever wrote it and however it was sharded then."""
        is_sharded = folder is not None and (folder / layout.SHARDS).exists()
        if self._strategy.replicated and not is_sharded:
            return whole
        from dtj.checkpoint import sharded  # noqa: PLC0415

        places = sharded.Places(parts, keeps=self._strategy.keeps)
        if folder is not None and is_sharded:
            return sharded.fill(whole, folder, places)  # type: ignore[no-any-return]
        return sharded.localise(whole, places)  # type: ignore[no-any-return]

    def _gather(self, mine: Any) -> list[Any]:
        if self._group is None:
            return [mine]
        everyone: list[Any] = [None] * self._world.size
        dist.gather_object(mine, everyone if self._world.rank == 0 else None, group=self._group)
        return everyone

    def _read(self) -> load.Found | None:
        """Rank 0 reads, all get the same bytes: unless there are shards, only rank 0 needs the volume."""
        shared: list[Any] = [None, None]
        if self._world.rank == 0:
            try:
                shared[0] = load.find(self.run_dir, self._resume_dir, warn=self._say)
            except RecipeError as error:
                shared[1] = error
        if self._group is not None:
            dist.broadcast_object_list(shared, src=0, group=self._group)
        found, failure = shared
        if failure:
            raise failure
        if found is not None:
            self._say(f"resuming from {found.folder}")
            if self._world.rank == 0:
                step = layout.step_of(found.folder.name)
                report_pipe.send({"checkpoint": {"step": step, "path": str(found.folder)}})
        return found  # type: ignore[no-any-return]

    def _check_names(self, saved: Mapping[str, Any]) -> None:
        if saved.keys() != self.parts.keys():
            raise RecipeError(
                f"the checkpoint holds {', '.join(sorted(saved))}, "
                f"but run.state names {', '.join(sorted(self.parts))}",
                fix="name the same parts, or start a new run without the checkpoint",
            )


def _copied(state: Any) -> Any:
    """The same structure, its tensors in memory of their own that no step changes."""
    if isinstance(state, torch.Tensor):
        return state.detach().clone() if state.device.type == "cpu" else state.detach().cpu()
    if isinstance(state, dict):
        return {key: _copied(value) for key, value in state.items()}
    if isinstance(state, list | tuple):
        return type(state)(_copied(value) for value in state)
    return copy.copy(state)
