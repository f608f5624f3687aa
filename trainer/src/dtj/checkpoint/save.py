"""State -> one committed checkpoint, or none: after a crash at any point the previous checkpoint is intact.

prepare  delete what crashed writers left; then an empty place for the content, which no run reads
write    state.pt and shards into it
commit   make it the checkpoint of step N                     one atomic operation, see storage.py
prune    delete older checkpoints

Before it commits or removes anything, the writer reads again whether the folder is still its own (owner.py).
"""

import contextlib
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from dtj.checkpoint import paths, reader, storage
from dtj.checkpoint.objects import Location
from dtj.checkpoint.owner import NO_SCORE, Owner
from dtj.errors import CheckpointError, DamagedError, RecipeError, SupersededError

# Types that torch.load(weights_only=True) loads. Subclasses do not load (numpy's float64 is a float).
_LEAVES = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size)
_DICTS = (dict, OrderedDict, Counter)


def prepare(owner: Owner, step: int) -> Location:
    """The empty place to write into. Only rank 0 calls this, `commit` and `abandon`.

    SupersededError if the run's folder belongs to another writer now, CheckpointError if the disk fails.
    """
    with _explained(owner, step):
        owner.check()
        if owner.leftovers:  # without those that were committed since
            owner.leftovers &= set(owner.storage.names())
            _remove(owner, owner.leftovers)
        return owner.storage.begin(step, owner.writer)


def commit(
    owner: Owner, step: int, state: dict[str, Any], *, keep: int = paths.KEEP, score: float = NO_SCORE
) -> Location:
    """Write `state` into the prepared place, commit that as the checkpoint of `step`, and return its path.

    keep   how many checkpoints to keep besides the best one
    score  of this one, if it has one
    Raise CheckpointError if it cannot be written; then no part of it is left. Raise SupersededError if the
    run's folder belongs to another writer now; then nothing else in it was changed. If that writer came just
    after the commit, the checkpoint stays.
    """
    run = owner.storage
    with _explained(owner, step):
        with run.file(run.pending(step, owner.writer) / paths.STATE_FILE) as file:
            torch.save(state, file)
        owner.check()
        committed = run.commit(step, owner.writer)
    owner.damaged.discard(committed.name)
    with contextlib.suppress(OSError):  # the checkpoint is written; the next save prunes again
        owner.note_score(step, score)
        _prune(owner, step, keep=keep)
    return committed


def abandon(owner: Owner, step: int) -> None:
    """Delete an unfinished checkpoint of this writer, to free its space."""
    with contextlib.suppress(OSError):
        owner.storage.remove(owner.storage.pending(step, owner.writer).name, writer=owner.writer)


def check_loadable(value: Any, path: str) -> None:
    """Raise RecipeError for state that could be saved but not loaded: better now than after a crash."""
    if type(value) in _LEAVES or isinstance(value, torch.Tensor):
        return
    if type(value) in _DICTS:
        for key, item in value.items():
            check_loadable(key, f"{path}'s key {key!r}")
            check_loadable(item, f"{path}[{key!r}]")
    elif type(value) in {list, tuple, set}:
        for number, item in enumerate(value):
            check_loadable(item, f"{path}[{number}]")
    else:
        raise RecipeError(
            f"state {path} is a {type(value).__qualname__}, which cannot be loaded safely from a checkpoint",
            fix="build its state_dict from tensors, numbers, strings, lists and plain dicts, "
            "e.g. float(value), dict(value)",
        )


def _prune(owner: Owner, committed: int, *, keep: int) -> None:
    """Delete old checkpoints, unreadable ones, and what is left of unfinished ones."""
    names = owner.storage.names()
    owner.leftovers &= set(names)
    # This run resumed before later ones if they were unreadable. They would soon count as one of the `keep`.
    unreadable = owner.damaged & set(names)
    later = paths.later(set(names) - unreadable, committed=committed)
    unreadable |= {n for n in later if _is_damaged(owner.run_dir / n)}
    good = set(names) - unreadable
    best = owner.best["step"] if owner.best else None
    doomed = [*unreadable, *paths.to_remove(good, committed=committed, keep=keep, best=best)]
    own = [n for n in paths.unfinished(names) if n.endswith(f".{owner.writer}.tmp") or n in owner.leftovers]
    if doomed or own:
        owner.check()
    _remove(owner, doomed + own)


def _remove(owner: Owner, names: Iterable[str]) -> None:
    for name in names:
        with contextlib.suppress(OSError):  # one that may not be removed keeps no other one
            owner.storage.remove(name, writer=owner.writer)


def _is_damaged(folder: Location) -> bool:
    try:
        reader.read(folder)
    except DamagedError:
        return True
    except (CheckpointError, MemoryError):  # it may be intact
        return False
    return False


@contextlib.contextmanager
def _explained(owner: Owner, step: int) -> Iterator[None]:
    try:
        yield
    except SupersededError:
        abandon(owner, step)
        raise
    except (OSError, RuntimeError) as error:  # see errors.revealed
        abandon(owner, step)
        with contextlib.suppress(OSError):
            owner.check()  # the next owner removes what a superseded one was writing
        raise storage.not_written(owner.run_dir, step, error) from error
