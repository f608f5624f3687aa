"""What the pages show of a job: plain values, times in RFC 3339. Pure.

Names and messages come from users' programs: a character that is not printable becomes a question mark.
"""

from typing import Any

from dtj_client.kubectl import Json
from dtj_client.report import plain
from dtj_client.top import problem


def row(job: Json) -> Json:
    """A line of the list of jobs."""
    meta, status = job["metadata"], job.get("status") or {}
    progress = status.get("progress") or {}
    found = {
        "namespace": meta["namespace"],
        "name": meta["name"],
        "phase": status.get("phase", ""),
        "since": status.get("lastTransitionTime"),
        "created": meta.get("creationTimestamp"),
        "ended": status.get("completionTime"),
        "ready": status.get("ready", ""),
        "step": status.get("step", ""),
        "done": share(progress.get("step"), progress.get("totalSteps")),
        "rate": number(progress.get("samplesPerSecond")),
        "loss": number(progress.get("loss")),
        "eta": progress.get("eta"),
        "goodput": number((status.get("goodput") or {}).get("percent")),
        "restarts": (status.get("restarts") or {}).get("total", 0),
        "problem": problem(status),
    }
    return {name: printable(value) for name, value in found.items()}


def share(part: int | None, whole: int | None) -> float | None:
    """From 0 to 1; None if one of the two is unknown."""
    return None if part is None or not whole else min(1.0, part / whole)


def number(text: str | None) -> float | None:
    """A number that the status has as text; None if it has none."""
    try:
        found = float(text or "")
    except ValueError:
        return None
    return found if abs(found) < float("inf") else None


def printable(value: Any) -> Any:
    """The value with only printable characters, line ends and tabs in its texts."""
    if isinstance(value, str):
        return "\n".join(plain(line) for line in value.split("\n"))
    if isinstance(value, dict):
        return {printable(key): printable(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [printable(each) for each in value]
    return value
