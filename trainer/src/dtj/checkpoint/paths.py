"""Names of checkpoint folders: which are committed, and which may be deleted. Pure: names in, names out.

<run>/step-120/state.pt       committed: the folder gets this name only once its content is on disk
<run>/step-140.tmp/state.pt   being written, or left over from a crash: never read, removed by the next save
"""

import re
from collections.abc import Iterable

STATE_FILE = "state.pt"
SHARDS = "shards"
# If the newest turns out unreadable (a failing disk), the one before it is used. That covers state.pt only: a
# damaged shard is noticed when ranks load it, and is an error.
KEEP = 2
_COMMITTED = re.compile(r"step-(0|[1-9]\d*)")


def name_of(step: int) -> str:
    """Folder name of a committed checkpoint."""
    return f"step-{step}"


def pending_name_of(step: int) -> str:
    """Folder name of a checkpoint that is not committed yet."""
    return f"step-{step}.tmp"


def step_of(name: str) -> int | None:
    """Step of a committed checkpoint's folder, None for any other name."""
    match = _COMMITTED.fullmatch(name)
    return int(match[1]) if match else None


def newest_first(names: Iterable[str]) -> list[str]:
    """The names of committed checkpoints among `names`."""
    return sorted((n for n in names if step_of(n) is not None), key=lambda n: step_of(n) or 0, reverse=True)


def to_remove(
    names: Iterable[str], *, committed: int, keep: int = KEEP, best: int | None = None
) -> list[str]:
    """Names to delete after the checkpoint of step `committed` was committed.

    All but the newest `keep` and the one of step `best`; leftovers; and checkpoints of later steps: this run
    resumed before them, which means they were unreadable, and they must not count as one of the `keep`.
    """
    names = list(names)
    leftovers = [n for n in names if n.startswith("step-") and n.endswith(".tmp")]
    unreadable = [n for n in newest_first(names) if (step_of(n) or 0) > committed]
    good = [n for n in newest_first(names) if n not in unreadable]
    return unreadable + [n for n in good[keep:] if step_of(n) != best] + leftovers
