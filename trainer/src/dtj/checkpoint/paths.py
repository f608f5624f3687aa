"""Names of checkpoints, what counts as committed, which may go. Pure: names in, names out.

<run>/step-120/state.pt       committed: the folder got this name only after its content was on the disk
<run>/step-140.tmp/state.pt   being written, or left by a crash: never read, removed by the next save
"""

import re
from collections.abc import Iterable

STATE_FILE = "state.pt"
SHARDS = "shards"
# The newest may turn out unreadable (a dying disk); then there is one before it.
KEEP = 2
_COMMITTED = re.compile(r"step-(0|[1-9]\d*)")


def name_of(step: int) -> str:
    """Folder of a committed checkpoint."""
    return f"step-{step}"


def pending_name_of(step: int) -> str:
    """Folder of one that is not committed yet."""
    return f"step-{step}.tmp"


def step_of(name: str) -> int | None:
    """Step of a committed checkpoint's folder, None for any other name."""
    match = _COMMITTED.fullmatch(name)
    return int(match[1]) if match else None


def newest_first(names: Iterable[str]) -> list[str]:
    """Committed checkpoints among the names of a folder."""
    return sorted((n for n in names if step_of(n) is not None), key=lambda n: step_of(n) or 0, reverse=True)


def to_remove(
    names: Iterable[str], *, committed: int, keep: int = KEEP, best: int | None = None
) -> list[str]:
    """What a save may delete once the checkpoint of step `committed` is there.

    Older ones beyond `keep`, but not the `best`; and leftovers. Ones of a later step too: this run began
    before them, so they were found unreadable, and must not take the place of good ones.
    """
    names = list(names)
    leftovers = [n for n in names if n.startswith("step-") and n.endswith(".tmp")]
    unreadable = [n for n in newest_first(names) if (step_of(n) or 0) > committed]
    good = [n for n in newest_first(names) if n not in unreadable]
    return unreadable + [n for n in good[keep:] if step_of(n) != best] + leftovers
