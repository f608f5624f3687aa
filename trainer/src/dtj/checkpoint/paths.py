"""Names in the folder of a run: which are committed, and which may be deleted. Pure: names in, names out.

<run>/owner.json                    which process may write into the folder, see owner.py
<run>/best.json                     which checkpoint has the highest score, if the run gives them scores
<run>/step-120/state.pt             committed: the folder gets this name only once its content is on disk
<run>/step-140.<writer>.tmp/...     being written, or left over from a crash: never read
<run>/owner.json.<writer>           likewise, and best.json.<writer>
"""

import re
from collections.abc import Iterable

OWNER_FILE = "owner.json"
BEST_FILE = "best.json"
RECORDS = (OWNER_FILE, BEST_FILE)
STATE_FILE = "state.pt"
SHARDS = "shards"
_PARTS = tuple(f"{name}." for name in RECORDS)
# If the newest turns out damaged, the one before it is used.
KEEP = 2
_COMMITTED = re.compile(r"step-(0|[1-9]\d*)")


def name_of(step: int) -> str:
    """Folder name of a committed checkpoint."""
    return f"step-{step}"


def pending_name_of(step: int, writer: str) -> str:
    """Folder name of a checkpoint that is not committed yet; two writers never share a folder."""
    return f"step-{step}.{writer}.tmp"


def doomed_name_of(step: int, writer: str) -> str:
    """Folder name of a committed checkpoint that `writer` is about to delete."""
    return f"step-{step}-old.{writer}.tmp"


def unfinished(names: Iterable[str]) -> list[str]:
    """The names of what is being written or deleted, or is left over from a crash."""
    return [n for n in names if (n.startswith("step-") and n.endswith(".tmp")) or n.startswith(_PARTS)]


def step_of(name: str) -> int | None:
    """Step of a committed checkpoint's folder, None for any other name."""
    match = _COMMITTED.fullmatch(name)
    return int(match[1]) if match else None


def newest_first(names: Iterable[str]) -> list[str]:
    """The names of committed checkpoints among `names`."""
    return sorted((n for n in names if step_of(n) is not None), key=lambda n: step_of(n) or 0, reverse=True)


def later(names: Iterable[str], *, committed: int) -> list[str]:
    """The names of checkpoints after the step `committed`; they are kept unless they are unreadable."""
    return [n for n in newest_first(names) if (step_of(n) or 0) > committed]


def to_remove(
    names: Iterable[str], *, committed: int, keep: int = KEEP, best: int | None = None
) -> list[str]:
    """Names of checkpoints to delete after the checkpoint of step `committed` was committed.

    All up to that step but the newest `keep` and the one of step `best`.
    """
    good = [n for n in newest_first(names) if (step_of(n) or 0) <= committed]
    return [n for n in good[keep:] if step_of(n) != best]
