"""RFC 3339 timestamps <-> seconds since the epoch, the planner's unit of time."""

from datetime import UTC, datetime

_FIRST, _LAST = -62_135_596_800, 253_402_300_799  # seconds since the epoch: all that a datetime can hold


def parse(text: object) -> float | None:
    """Seconds since the epoch, or None if the text is not a timestamp with a time zone."""
    try:
        moment = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return moment.timestamp() if moment.tzinfo else None


def rfc3339(seconds: float) -> str:
    """Whole seconds in UTC, as in the API conventions; the nearest date from year 1 to 9999."""
    within = min(max(int(seconds), _FIRST), _LAST)
    return datetime.fromtimestamp(within, UTC).isoformat().replace("+00:00", "Z")


def with_fraction(seconds: float) -> str:
    """Microseconds in UTC: a MicroTime of the API, as in Leases and Events."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def soonest(*moments: float | None) -> float | None:
    return min((moment for moment in moments if moment is not None), default=None)
