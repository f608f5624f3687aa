"""How urgent is the difference between the stored status and the new one?

A phase or a condition is written at once. Counts and messages may wait some seconds, since they change with
every pod; progress waits a minute, since it always changes. All go along with a write that happens anyway.
So does a new job's first status: its pods were made a moment ago and will have news in another.
"""

from typing import Any

from dtj_operator.plan import times

Json = dict[str, Any]

_COUNTS = ("replicas", "currentReplicas", "done", "ready")
_CALM = (*_COUNTS, "message", "conditions", "step", "progress", "goodput", "restarts", "replacing")
FIRST_S = 1.0  # in a burst of jobs all pods are made before statuses that are out of date at once
JOIN_S = 3.0  # counts move in company: pods end one after another, and then the job does
COUNTS_S = 10.0  # at most this long are the counts behind, and never more than a write per 10 s and job


def write_at(
    old: Json,
    new: Json,
    *,
    now: float,
    last_write: float,
    progress_s: float,
    behind_since: float | None = None,
    begun: bool = False,
) -> float | None:
    """When to write `new`: now, later, or never (None) as things are.

    last_write    seconds since the epoch of the last write by this process, 0 where there is none
    progress_s    least time between two writes that only bring progress
    behind_since  since when the stored status has been behind, as far as this process knows; None: since now
    begun         pods were made just now, and nothing else is to be told
    """
    if begun and not old:
        return now + FIRST_S
    if _urgent(old) != _urgent(new):
        return now
    due: list[float] = []
    if _patient(old) != _patient(new):
        since = now if behind_since is None else behind_since
        certain = max(last_write, since) <= now  # else the clock was set back
        due.append(max(last_write + COUNTS_S, since + JOIN_S) if certain else now)
    if old.get("progress") != new.get("progress"):
        observed = times.parse((old.get("progress") or {}).get("observedAt"))
        due.append(now if observed is None or observed > now else observed + progress_s)
    return max(now, min(due)) if due else None


def merge_patch(old: Json, new: Json) -> Json:
    """RFC 7386: what turns `old` into `new`."""
    patch: Json = dict.fromkeys(old.keys() - new.keys())
    for name, value in new.items():
        if name not in old:
            patch[name] = value
        elif isinstance(value, dict) and isinstance(old[name], dict):
            if inner := merge_patch(old[name], value):
                patch[name] = inner
        elif old[name] != value:
            patch[name] = value
    return patch


def soonest(*moments: float | None) -> float | None:
    return min((moment for moment in moments if moment is not None), default=None)


def only_progress(old: Json, new: Json) -> bool:
    """Whether a write would bring nothing but progress."""
    return _urgent(old) == _urgent(new) and _patient(old) == _patient(new)


def _urgent(status: Json) -> Json:
    """The restarts' highestStep moves with progress, and so does the end of a row without any."""
    restarts = {k: v for k, v in (status.get("restarts") or {}).items() if k in ("counted", "disruptions")}
    states = [(c["type"], c["status"], c["reason"]) for c in status.get("conditions") or ()]
    return {k: v for k, v in status.items() if k not in _CALM} | {"restarts": restarts, "conditions": states}


def _patient(status: Json) -> Json:
    messages = [c["message"] for c in status.get("conditions") or ()]
    return {"messages": messages} | {name: status.get(name) for name in _COUNTS}
