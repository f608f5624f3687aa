"""The table of `kubectl dtj top`: what each job does now, and what is wrong with it. Pure."""

from collections.abc import Iterator, Sequence
from datetime import datetime

from dtj_client.kube.kubectl import Json
from dtj_client.show.report import condition, plain, since, stalled

HEADER = ("NAME", "PHASE", "FOR", "READY", "STEP", "SAMPLES/S", "GOODPUT", "RESTARTS", "PROBLEM")


def table(jobs: Sequence[Json], now: datetime, width: int) -> Iterator[str]:
    """Yield the lines, cut to `width` columns; jobs that run come first."""
    rows = [HEADER, *(_row(job, now) for job in sorted(jobs, key=_order))]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADER))]
    for row in rows:
        line = "  ".join(f"{cell:{size}}" for cell, size in zip(row, widths, strict=True))
        yield line.rstrip()[:width]


def _order(job: Json) -> tuple[bool, str]:
    """Jobs that have ended or are suspended come last."""
    phase = (job.get("status") or {}).get("phase")
    return phase in ("Succeeded", "Failed", "Suspended"), job["metadata"]["name"]


def _row(job: Json, now: datetime) -> tuple[str, ...]:
    status = job.get("status") or {}
    goodput = (status.get("goodput") or {}).get("percent")
    cells = (
        job["metadata"]["name"],
        status.get("phase", "-"),
        since(status.get("lastTransitionTime"), now) or "-",
        status.get("ready", "-"),
        status.get("step") or "-",
        (status.get("progress") or {}).get("samplesPerSecond") or "-",
        "-" if goodput is None else f"{goodput} %",
        str((status.get("restarts") or {}).get("total", 0)),
        problem(status),
    )
    return tuple(plain(str(cell)) for cell in cells)


def problem(status: Json) -> str:
    """A hang, a slow rank, pods that cannot start: the first that the operator reports; else a stall."""
    phase = status.get("phase")
    if phase == "Failed":
        return str(status.get("message") or "")
    held = condition(status, "Suspended")
    if phase == "Suspended" and held.get("reason") != "Suspended":  # not by its user
        return str(held.get("message") or held.get("reason") or "")
    for kind, phases in (("Healthy", ("Running",)), ("PodsReady", ("Pending", "Starting", "Recovering"))):
        found = condition(status, kind)
        if phase in phases and found.get("status") == "False":
            return " ".join(str(found.get("message") or found.get("reason") or "").split())
    return stalled(status)
