"""The Events about a job: what the operator did or found."""

from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]


@dataclass(frozen=True, order=True)
class Event:
    """One Event.

    at     when it last happened, in RFC 3339
    type   Normal or Warning
    count  how often it happened
    """

    at: str
    type: str
    reason: str
    message: str
    count: int

    def __str__(self) -> str:
        again = f" ({self.count} times)" if self.count > 1 else ""
        return f"{self.at} {self.type} {self.reason}: {self.message}{again}"


def of_api(found: Json) -> Event:
    """An Event as the API has it, of either of its two kinds."""
    series, meta = found.get("series") or {}, found["metadata"]
    times = (series.get("lastObservedTime"), found.get("lastTimestamp"), found.get("eventTime"))
    return Event(
        at=next((each for each in times if each), meta.get("creationTimestamp") or ""),
        type=found.get("type") or "Normal",
        reason=found.get("reason") or "",
        message=found.get("message") or "",
        count=series.get("count") or found.get("count") or 1,
    )
