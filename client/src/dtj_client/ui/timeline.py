"""When a job was in which phase, and what happened, as far as status and Events know. Pure."""

from collections.abc import Iterator, Sequence

from dtj_client.job import FINAL
from dtj_client.kube.kubectl import Json
from dtj_client.show.report import cause, condition

WAITING = "Waiting"
UNSEEN = "Unseen"  # the phases are not known


def timeline(job: Json, phases: Sequence[tuple[str, str]], events: Sequence[Json]) -> Json:
    """Segments of phases, and marks with their causes, the oldest first.

    phases  phase and start of each one that was seen, the oldest first
    """
    marks = sorted([*_of_status(job), *map(_of_event, events)], key=lambda mark: str(mark["at"]))
    return {"segments": list(_segments(job, phases)), "marks": marks}


def _segments(job: Json, phases: Sequence[tuple[str, str]]) -> Iterator[Json]:
    """A segment without an end lasts until now. There is one, also of a job that failed within a second."""
    ends = [*(at for _, at in phases[1:]), None]
    seen = [(phase, at, end) for (phase, at), end in zip(phases, ends, strict=False) if phase not in FINAL]
    every = (*_before(job, phases[0][1] if phases else None), *seen)
    for phase, at, end in [each for each in every if each[1] != each[2]] or every[:1]:
        yield {"phase": phase, "from": at, "to": end}


def _before(job: Json, first: str | None) -> Iterator[tuple[str, str, str | None]]:
    """What was before the first phase that was seen."""
    status = job.get("status") or {}
    created, started = job["metadata"]["creationTimestamp"], status.get("startTime")
    resumed = condition(status, "Suspended").get("lastTransitionTime", "")
    # A suspension ends an attempt and resets startTime, so the job may have run before.
    if status.get("attempt") and (not started or resumed >= started):
        yield UNSEEN, created, first
    elif started and (first is None or started < first):
        yield WAITING, created, started
        yield UNSEEN, started, first
    else:
        yield WAITING, created, first


def _of_status(job: Json) -> Iterator[Json]:
    status = job.get("status") or {}
    yield _mark(job["metadata"]["creationTimestamp"], "note", "Created", "")
    if status.get("startTime"):
        yield _mark(status["startTime"], "note", "Started", "")
    failures = status.get("failures") or ([status["failure"]] if status.get("failure") else [])
    for failure in failures:
        if failure.get("at"):
            attempt = f", attempt {failure['attempt']}" if failure.get("attempt") is not None else ""
            yield _mark(
                failure["at"], "failure", str(failure.get("reason", "")), f"{cause(failure)}{attempt}"
            )
    if status.get("completionTime"):
        kind = "failure" if status.get("phase") == "Failed" else "success"
        yield _mark(status["completionTime"], kind, status.get("phase", ""), status.get("message", ""))


def _of_event(event: Json) -> Json:
    kind = "restart" if event["reason"] in ("Restarting", "RestartedInPlace") else "note"
    if kind == "note" and event["type"] == "Warning":
        kind = "warning"
    again = f" ({event['count']} times)" if event["count"] > 1 else ""
    return _mark(event["at"], kind, event["reason"], f"{event['message']}{again}")


def _mark(at: str, kind: str, title: str, text: str) -> Json:
    return {"at": at, "kind": kind, "title": title, "text": text}
