"""Snapshot -> committed checkpoint, in this thread or in the background.

Replicated state: rank 0 alone writes. Sharded state: each rank writes its shards, then rank 0 commits.
Process groups are arguments, because a run gets new ones whenever a lost rank is replaced.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import torch.distributed as dist

from dtj.checkpoint import paths, save, storage
from dtj.checkpoint.objects import Location, locate
from dtj.checkpoint.owner import NO_SCORE, Owner
from dtj.checkpoint.parts import Snapshot
from dtj.errors import CheckpointError, DamagedError, DtjError, NoSpaceError, RecipeError, SupersededError
from dtj.ranks import exchange
from dtj.ranks.world import collective_timeout
from dtj.telemetry import report_pipe

Group: TypeAlias = "dist.ProcessGroup | None"
T = TypeVar("T")
_Fields = list[str]  # of an error: its type, what and fix
_REPORTED_CHARACTERS = 500  # of a failure; a report must fit into the pipe
_ERRORS: dict[str, type[DtjError]] = {
    error.__name__: error
    for error in (CheckpointError, DamagedError, NoSpaceError, RecipeError, SupersededError)
}


@dataclass(kw_only=True, eq=False)
class Writer:
    """Writes one checkpoint at a time into the folder of a run.

    saved_step  step of the newest checkpoint that this rank knows to be committed; None if there is none
    score       of the save in progress, NO_SCORE if there is none or it has none
    failure     why the last checkpoint could not be written; None if it was
    owner       rank 0's claim on the folder; None if nothing is saved
    """

    owner: Owner | None
    keep: int
    is_rank0: bool
    is_replicated: bool
    clock: Callable[[], float]

    def __post_init__(self) -> None:
        self.saved_step: int | None = None
        self.score = NO_SCORE
        self.failure: CheckpointError | SupersededError | None = None
        self._thread: threading.Thread | None = None
        self._copy: Snapshot | None = None  # of the last save in the background
        self._group: Group = None  # of the background thread

    def write(self, snapshot: Snapshot, *, score: float, began: float, group: Group) -> None:
        """Write and commit. Every rank of the group calls this. A disk error is stored in `failure`.

        score  of this checkpoint, NO_SCORE if it has none
        began  clock time at which the save started, for the report
        """
        self.score = score
        self._write(snapshot, began=began, group=group)

    def _write(self, snapshot: Snapshot, *, began: float, group: Group) -> None:
        step = snapshot.step
        try:
            folder = self._commit_together(snapshot, group)
        except (CheckpointError, SupersededError) as error:
            self.failure = error
            return
        finally:
            self.score = NO_SCORE
        self.failure, self.saved_step = None, step
        if self.is_rank0 and folder is not None:
            report(folder, saveSeconds=round(self.clock() - began, 3), step=step, saveFailure=None)

    def start(self, snapshot: Snapshot, *, score: float, began: float, group: Group) -> None:
        """`write` a copy of the snapshot in the background. Call `wait` before the next one."""
        if group is not None and not self.is_replicated and self._group is None:
            # Two threads must not share a group. One for the whole run is enough: ranks with shards are never
            # replaced.
            self._group = dist.new_group(  # type: ignore[assignment]
                backend="gloo", timeout=collective_timeout()
            )
        self.score = score
        self._copy = snapshot.copied(self._copy)
        self._thread = threading.Thread(
            target=self._write_in_thread,
            args=(self._copy,),
            kwargs={"began": began, "group": self._group},
            name="checkpoint",
            daemon=True,
        )
        self._thread.start()

    def _write_in_thread(self, snapshot: Snapshot, **how: Any) -> None:
        """`_write`; any error is stored, because an exception of a thread is not raised here."""
        try:
            self._write(snapshot, **how)
        except Exception as error:  # noqa: BLE001 - e.g. of a process group that broke
            self.failure = storage.not_written(self._need_owner().run_dir, snapshot.step, error)

    def wait(self) -> None:
        """Wait until the save in the background is done."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _commit_together(self, snapshot: Snapshot, group: Group) -> Location | None:
        """The committed folder; None on ranks that wrote nothing. With shards, an error is raised on all."""
        owner, step = self._need_owner(), snapshot.step
        if self.is_replicated:
            if not self.is_rank0:
                return None
            save.prepare(owner, step)
            return self._commit(snapshot)
        from dtj.checkpoint import sharded  # noqa: PLC0415 - half a second of imports that DDP does not need

        pending = on_rank0(lambda: str(save.prepare(owner, step)), group)
        try:
            sharded.write(locate(pending), step, snapshot.shards, group=group)
        except CheckpointError:
            if self.is_rank0:
                save.abandon(owner, step)
            raise
        return locate(on_rank0(lambda: str(self._commit(snapshot)), group))

    def _commit(self, snapshot: Snapshot) -> Location:
        return save.commit(self._need_owner(), snapshot.step, snapshot.tree, keep=self.keep, score=self.score)

    def _need_owner(self) -> Owner:
        assert self.owner is not None  # nothing is saved without a folder
        return self.owner


def report(newest: Location, **more: float | None) -> None:
    """Report the newest checkpoint to the agent; called on rank 0."""
    report_pipe.send({"checkpoint": {"step": paths.step_of(newest.name), "path": str(newest)}} | more)


def report_failure(why: str | None) -> None:
    """Report to the agent why no checkpoint can be written, None if one can; called on rank 0."""
    report_pipe.send({"saveFailure": why and why[:_REPORTED_CHARACTERS]})


def on_rank0(function: Callable[[], T], group: Group) -> T:
    """Call `function` on rank 0 only; every rank returns its result or raises its DtjError.

    The result is plain data, see exchange.py.
    """
    shared: tuple[Any, _Fields] = (None, [])
    if group is None or dist.get_rank(group) == 0:
        shared = _tried(function)
    if group is not None:
        shared = exchange.broadcast(shared, src=0, group=group)
    found, error = shared
    if error:
        raise _as_error(error)
    result: T = found
    return result


def on_all_ranks(function: Callable[[], T], group: Group) -> T:
    """Call `function` on every rank; if it raises a DtjError on any of them, every rank raises the same one.

    Of several errors, that is the first which is not a DamagedError.
    """
    found, mine = _tried(function)
    of_all = [mine] if group is None else exchange.all_gather(mine, group=group)
    errors = [_as_error(fields) for fields in of_all if fields]
    if errors:
        raise next((each for each in errors if not isinstance(each, DamagedError)), errors[0])
    result: T = found
    return result


def _tried(function: Callable[[], Any]) -> tuple[Any, _Fields]:
    """The result, and the error as plain data for other ranks; empty if there is none."""
    try:
        return function(), []
    except DtjError as error:
        return None, [type(error).__name__, error.what, error.fix]


def _as_error(fields: _Fields) -> DtjError:
    name, what, fix = fields
    return _ERRORS.get(name, DtjError)(what, fix=fix)
