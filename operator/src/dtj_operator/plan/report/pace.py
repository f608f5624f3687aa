"""When to write the new status, depending on how it differs from the stored one.

A changed phase or condition, and which pods are to be replaced, is written at once. Counts and messages wait
some seconds, because they change with every pod. Progress waits for the job's turn, because it changes all
the time. Any other write includes them too.
The first status of a new job also waits, because its pods were just created and will change in a moment.
"""

from dtj_operator.model.json import Json

_COUNTS = ("replicas", "replicaStatuses", "ready")
_DEFERRABLE = (*_COUNTS, "message", "conditions", "step", "progress", "goodput", "restarts", "memory")
_URGENT_MEMORY = ("rejoins", "wantedReplicas", "shortage")
FIRST_WRITE_S = 1.0  # in a burst of jobs, creating pods goes before statuses that are outdated at once
BATCH_S = 3.0  # counts change together: pods finish one after another, and then the job
COUNTS_INTERVAL_S = 10.0  # one write of counts per job and 10 s; counts are at most this old


def write_at(
    old: Json,
    new: Json,
    *,
    now: float,
    last_write: float,
    progress_due: bool,
    stale_since: float | None = None,
    pods_created: bool = False,
) -> float | None:
    """When to write `new`: now, later, or never (None) as things are.

    last_write    seconds since the epoch of the last write by this process, 0 if there is none
    progress_due  it is this job's turn to have its progress written
    stale_since   since when this process knows that the stored status is outdated; None: since now
    pods_created  the only news is that this reconcile created pods
    """
    if pods_created and not old:
        return now + FIRST_WRITE_S
    if _urgent(old) != _urgent(new) or not _replacing(new).items() <= _replacing(old).items():
        return now
    due: list[float] = []
    if _deferrable(old) != _deferrable(new):
        since = now if stale_since is None else stale_since
        certain = max(last_write, since) <= now  # if not, the clock was set back
        due.append(max(last_write + COUNTS_INTERVAL_S, since + BATCH_S) if certain else now)
    if progress_due and old.get("progress") != new.get("progress"):
        due.append(now)
    return max(now, min(due)) if due else None


def merge_patch(old: Json, new: Json) -> Json:
    """The RFC 7386 merge patch that turns `old` into `new`."""
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


def only_progress(old: Json, new: Json) -> bool:
    """Whether a write would change only progress."""
    return _urgent(old) == _urgent(new) and _deferrable(old) == _deferrable(new)


def _urgent(status: Json) -> Json:
    """Without what changes with progress, such as highestStep and withoutProgress."""
    restarts = {k: v for k, v in (status.get("restarts") or {}).items() if k in ("counted", "disruptions")}
    states = [(c["type"], c["status"], c["reason"]) for c in status.get("conditions") or ()]
    return {k: v for k, v in status.items() if k not in _DEFERRABLE} | {
        "restarts": restarts,
        "conditions": states,
        "memory": {k: v for k, v in (status.get("memory") or {}).items() if k in _URGENT_MEMORY},
    }


def _replacing(status: Json) -> Json:
    """The pods are deleted only once this is stored; that one of them is gone can wait."""
    found = (status.get("memory") or {}).get("replacing")
    return found if isinstance(found, dict) else {}  # a person may have edited it


def _deferrable(status: Json) -> Json:
    messages = [c["message"] for c in status.get("conditions") or ()]
    done = (status.get("memory") or {}).get("done")
    return {"messages": messages, "done": done} | {name: status.get(name) for name in _COUNTS}
