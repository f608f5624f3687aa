"""RFC 3339 timestamps <-> seconds since the epoch, the planner's unit of time."""

from datetime import UTC, datetime


def parse(text: object) -> float | None:
    """Seconds since the epoch, or None if the text is not a timestamp with a time zone."""
    try:
        moment = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return moment.timestamp() if moment.tzinfo else None


def rfc3339(seconds: float) -> str:
    """Whole seconds in UTC, as in the API conventions."""
    return datetime.fromtimestamp(int(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def soonest(*moments: float | None) -> float | None:
    return min((moment for moment in moments if moment is not None), default=None)
