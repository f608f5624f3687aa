"""RFC 3339 and seconds since the epoch, which is how the planner counts time."""

from datetime import UTC, datetime


def parse(text: object) -> float | None:
    """Seconds since the epoch, or None where the text is no timestamp with a zone."""
    try:
        moment = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return moment.timestamp() if moment.tzinfo else None


def rfc3339(seconds: float) -> str:
    """Whole seconds in UTC, as the API conventions have it."""
    return datetime.fromtimestamp(int(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
