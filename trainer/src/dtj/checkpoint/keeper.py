"""When state is saved and how all ranks come by it: the collective side of checkpoints.

`save.py` and `load.py` touch the disk and know nothing of ranks; this stands between them and `run.py`.
"""

import io
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist

from dtj.checkpoint import layout, load, save
from dtj.errors import RecipeError
from dtj.settings import Settings
from dtj.watch import channel
from dtj.world import World

# Where the flags name no interval: a save costs milliseconds to seconds, a lost minute is bearable.
_SAVE_INTERVAL_S = 60.0


class Stateful(Protocol):
    """What can be saved: models, optimizers, schedules, feeds."""

    def state_dict(self) -> Any: ...
    def load_state_dict(self, state: Any, /) -> Any: ...


class Keeper:
    """Saves and restores named parts and the step, which is all: the random generators follow from it."""

    def __init__(
        self,
        *,
        settings: Settings,
        world: World,
        group: "dist.ProcessGroup | None",
        clock: Callable[[], float],
        say: Callable[[str], None],
    ) -> None:
        self.run_dir = Path(settings.checkpoint_dir) if settings.checkpoint_dir else None
        self.parts: dict[str, Stateful] = {}
        self._resume_dir = Path(settings.resume_dir) if settings.resume_dir else None
        self._every = settings.save_every
        self._world = world
        self._group = group
        self._clock = clock
        self._say = say
        self._saved_step: int | None = None
        self._saved_at = clock()

    def wants_save(self) -> bool:
        """Rank 0's clock says that a save is due; it happens once all ranks know."""
        if self._world.rank != 0 or not self.run_dir or self._every is not None:
            return False
        return self._clock() - self._saved_at >= _SAVE_INTERVAL_S

    def is_due(self, step: int) -> bool:
        """The flag `save_every` says so, on every rank alike."""
        return self._every is not None and step % self._every == 0

    def save(self, step: int) -> Path | None:
        """Commit the state after `step`, unless that is done; None where there is nowhere or nothing to save.

        Every rank calls this after the same step. Only rank 0's return means that the disk has it.
        """
        if not self.run_dir or not self.parts:
            return None
        folder = self.run_dir / layout.name_of(step)
        if self._saved_step == step:
            return folder
        if self._world.rank == 0:
            parts = {name: part.state_dict() for name, part in self.parts.items()}
            save.check_loadable(parts, "state")
            save.commit(self.run_dir, step, {"step": step, "parts": parts})
            channel.send({"step": step, "checkpoint": {"step": step, "path": str(folder)}})
        self._saved_step, self._saved_at = step, self._clock()
        return folder

    def restore(self) -> int | None:
        """Load the newest checkpoint into the parts; its step, None where there is none."""
        state = self._read()
        if state is None:
            return None
        self._load(state)
        step: int = state["step"]
        if self.run_dir and (self.run_dir / layout.name_of(step)).exists():
            self._saved_step = step
        return step

    def pack(self, step: int) -> bytes:
        """The parts as they are now, for another rank."""
        parts = {name: part.state_dict() for name, part in self.parts.items()}
        save.check_loadable(parts, "state")
        buffer = io.BytesIO()
        torch.save({"step": step, "parts": parts}, buffer)
        return buffer.getvalue()

    def unpack(self, data: bytes) -> None:
        """Take over what another rank packed."""
        self._load(load.parse(data))

    def _load(self, state: dict[str, Any]) -> None:
        self._check_names(state["parts"])
        for name, part in self.parts.items():
            try:
                part.load_state_dict(state["parts"][name])
            except (RuntimeError, ValueError, KeyError) as error:
                raise RecipeError(
                    f"{name} does not fit the checkpoint of step {state['step']}: {str(error).strip()}",
                    fix="build the same model and optimizer, or start a new run without the checkpoint",
                ) from error

    def _read(self) -> dict[str, Any] | None:
        """Rank 0 reads, all get the same bytes: no rank needs the volume but rank 0."""
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
        if found is None:
            return None
        self._say(f"resuming from {found.folder}")
        if self._world.rank == 0:
            step = layout.step_of(found.folder.name)
            channel.send({"checkpoint": {"step": step, "path": str(found.folder)}})
        return load.parse(found.data)

    def _check_names(self, saved: Mapping[str, Any]) -> None:
        if saved.keys() != self.parts.keys():
            raise RecipeError(
                f"the checkpoint holds {', '.join(sorted(saved))}, "
                f"but run.state names {', '.join(sorted(self.parts))}",
                fix="name the same parts, or start a new run without the checkpoint",
            )
