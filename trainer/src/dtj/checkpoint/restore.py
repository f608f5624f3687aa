"""All ranks load the newest checkpoint that can be read, at the same time.

Rank 0 names it and checks its checksums. A rank that does not see the same file gets the state from rank 0:
so all ranks start from the same step, even if some of them see another disk.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch.distributed as dist

from dtj.checkpoint import reader
from dtj.checkpoint.objects import Location, locate
from dtj.checkpoint.writer import Group, on_all_ranks, on_rank0
from dtj.errors import DamagedError
from dtj.ranks import exchange


def newest(
    candidates: Iterator[Location],
    group: Group,
    *,
    load: Callable[[reader.Found], None],
    say: Callable[[str], None],
    skipped: Callable[[Location], object] = lambda _: None,
) -> reader.Found | None:
    """Load the newest checkpoint that can be read, the same on every rank; None if there is none.

    candidates  on rank 0, which alone iterates over them
    load        loads it into the parts of this rank
    say         prints on rank 0; a damaged checkpoint is skipped with a warning
    skipped     called on each rank with a damaged checkpoint
    An error of the candidates, or of a checkpoint that may be intact, is raised on every rank.
    """

    def name_next() -> dict[str, Any] | None:
        for folder in candidates:
            return {"folder": str(folder), "is": reader.fingerprint(folder)}
        return None

    while (named := on_rank0(name_next, group)) is not None:
        folder = locate(named["folder"])
        try:
            found = _read(folder, named["is"], group, say)
            on_all_ranks(partial(load, found), group)
        except DamagedError as error:
            say(f"checkpoint {folder} is unreadable and was skipped: {error.what}")
            skipped(folder)
        else:
            return found
    return None


def _read(folder: Location, fingerprint: Any, group: Group, say: Callable[[str], None]) -> reader.Found:
    """Read it on every rank that sees what rank 0 sees, whose `fingerprint` it is; the others receive it."""

    def read() -> tuple[dict[str, Any] | None, Location | None]:
        if group is None or dist.get_rank(group) == 0:
            return reader.read(folder), reader.shards_of(folder)
        return _same(folder, fingerprint), None

    state, shards = on_all_ranks(read, group)
    say(f"resuming from {folder}")
    where = on_rank0(lambda: shards and str(shards), group)
    if group is not None and not all(exchange.all_gather_number(state is not None, group=group)):
        state = exchange.share_state(state, group=group)
    assert state is not None  # read, or received
    return reader.Found(folder=folder, state=state, shards=locate(where) if where else None)


def _same(folder: Location, fingerprint: Any) -> dict[str, Any] | None:
    """The state, if this rank sees the file that rank 0 sees, and can read it. Rank 0 checks it."""
    if fingerprint is None or reader.fingerprint(folder) != fingerprint:
        return None
    try:
        return reader.load(folder)
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001 - a damaged file can raise any exception
        return None
