"""Sets of replica indices as text: "0-3,7". A job's ranks mostly end together, so this stays short."""

from collections.abc import Iterable

HIGHEST = 9_999  # of an index: the API allows 10,000 replicas


def parse(text: str) -> set[int]:
    """Return the indices; what is no range is left out."""
    found: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        if first.isdecimal() and (last or first).isdecimal():
            found.update(range(int(first), min(int(last or first), HIGHEST) + 1))
    return found


def text(indices: Iterable[int], limit: int) -> str:
    """Return the indices in order, in at most `limit` characters: what does not fit is left out."""
    runs: list[list[int]] = []
    for index in sorted(set(indices)):
        if runs and index == runs[-1][1] + 1:
            runs[-1][1] = index
        else:
            runs.append([index, index])
    told = ""
    for first, last in runs:
        more = ("," if told else "") + (f"{first}-{last}" if last > first else str(first))
        if len(told) + len(more) > limit:
            break
        told += more
    return told
