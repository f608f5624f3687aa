"""Sets of replica indices as text, such as "0-3,7". Short, because most ranks of a job finish together."""

from collections.abc import Iterable

HIGHEST = 9_999  # index: the API allows 10,000 replicas
LONGEST = 40  # characters of one range


def parse(text: str) -> set[int]:
    """Return the indices; ignore what is not a range."""
    found: set[int] = set()
    for part in text.split(","):
        if len(part) > LONGEST:
            continue
        first, _, last = part.partition("-")
        if first.isdecimal() and (last or first).isdecimal():
            found.update(range(int(first), min(int(last or first), HIGHEST) + 1))
    return found


def text(indices: Iterable[int], limit: int) -> str:
    """Return the sorted indices in at most `limit` characters; omit those that do not fit."""
    runs: list[list[int]] = []
    for index in sorted(set(indices)):
        if runs and index == runs[-1][1] + 1:
            runs[-1][1] = index
        else:
            runs.append([index, index])
    joined = ""
    for first, last in runs:
        more = ("," if joined else "") + (f"{first}-{last}" if last > first else str(first))
        if len(joined) + len(more) > limit:
            break
        joined += more
    return joined
