"""All ranks read the newest checkpoint that can be read, at the same time.

Rank 0 names it and checks its checksums. A rank that does not see the same file gets the state from rank 0:
so all ranks start from the same step, even if some of them see another disk.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch.distributed as dist

from dtj.checkpoint import reader
from dtj.checkpoint.objects import Location, locate
from dtj.checkpoint.writer import Group, as_error, as_fields, on_rank0
from dtj.errors import CheckpointError
from dtj.ranks import exchange

# What rank 0 says of a checkpoint.
_Verdict = dict[str, Any]


def readable(
    candidates: Iterator[Location], group: Group, *, say: Callable[[str], None]
) -> Iterator[reader.Found]:
    """The checkpoints that can be read, the newest first, the same on every rank.

    candidates  on rank 0, which alone iterates over them
    say         prints on rank 0; a damaged checkpoint is skipped with a warning
    An error of the candidates, or of a checkpoint that may be intact, is raised on every rank.
    """

    def name_next() -> dict[str, Any] | None:
        for folder in candidates:
            return {"folder": str(folder), "is": reader.fingerprint(folder)}
        return None

    while (named := on_rank0(name_next, group)) is not None:
        folder = locate(named["folder"])
        if group is None or dist.get_rank(group) == 0:
            state, verdict = _checked(folder)
        else:
            state, verdict = _same(folder, named["is"]), {}
        answers = [(verdict, state is not None)]
        if group is not None:
            answers = exchange.all_gather((verdict, state is not None), group=group)
        verdict = answers[0][0]
        if verdict["error"]:
            raise as_error(verdict["error"])
        if verdict["damage"]:
            say(f"checkpoint {folder} is unreadable and was skipped: {verdict['damage']}")
            continue
        say(f"resuming from {folder}")
        if group is not None and not all(has_it for _, has_it in answers):
            state = exchange.share_state(state, group=group)
        shards = locate(verdict["shards"]) if verdict["shards"] else None
        assert state is not None  # read, or received
        yield reader.Found(folder=folder, state=state, shards=shards)


def _checked(folder: Location) -> tuple[dict[str, Any] | None, _Verdict]:
    """The state if its checksums are right, and what to say to the other ranks."""
    verdict: _Verdict = {"error": None, "damage": None, "shards": None}
    try:
        state = reader.read(folder)
        shards = reader.shards_of(folder)
    except CheckpointError as error:  # it may be intact: if skipped, a later save would delete it
        return None, verdict | {"error": as_fields(error)}
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001 - a damaged file can raise any exception
        cause = next(iter(str(error).strip().splitlines()), type(error).__name__)
        return None, verdict | {"damage": cause}
    return state, verdict | {"shards": shards and str(shards)}


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
