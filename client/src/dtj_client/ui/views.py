"""What the pages show of a job: plain values, times in RFC 3339. Pure.

Names and messages come from users' programs: a character that is not printable becomes a question mark.
"""

from collections.abc import Sequence
from typing import Any

from dtj_client.as_yaml import as_yaml
from dtj_client.job import FINAL
from dtj_client.kube.kubectl import Json, index_of
from dtj_client.show.readings import number
from dtj_client.show.report import SHARES, cause, plain, pod_state
from dtj_client.show.top import problem


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


def printable(value: Any) -> Any:
    """The value with only printable characters, line ends and tabs in its texts."""
    if isinstance(value, str):
        return "\n".join(plain(line) for line in value.split("\n"))
    if isinstance(value, dict):
        return {printable(key): printable(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [printable(each) for each in value]
    return value


def goodput(status: Json) -> Json:
    """Seconds by how they were spent."""
    found = status.get("goodput") or {}
    return {key: found.get(f"{key}Seconds", 0) for key, _, _ in SHARES}


def replicas(job: Json, pods: Sequence[Json]) -> list[Json]:
    """A line for each replica, and for pods beyond the number of replicas."""
    name, status = job["metadata"]["name"], job.get("status") or {}
    by_index = {index_of(pod, name): pod for pod in pods}
    final = status.get("phase") in FINAL
    return [
        _replica(index, by_index.get(index), expected=not final)
        for index in sorted({*range(int(job["spec"].get("replicas", 1))), *by_index} - {-1})
    ]


def _replica(index: int, pod: Json | None, *, expected: bool) -> Json:
    if pod is None:
        return {
            "replica": index,
            "state": "no pod",
            "node": "",
            "started": None,
            "restarts": 0,
            "bad": expected,
        }
    status = pod.get("status") or {}
    state = pod_state(pod)
    return {
        "replica": index,
        "state": state,
        "node": pod["spec"].get("nodeName", ""),
        "started": status.get("startTime"),
        "restarts": sum(each.get("restartCount", 0) for each in status.get("containerStatuses") or ()),
        "bad": state not in ("Running", "Succeeded"),
    }


def failures(status: Json) -> list[Json]:
    """The failures that the status keeps, the latest first; the latest with its whole message."""
    found = [dict(each) for each in status.get("failures") or ()]
    last = status.get("failure")
    if last and found and last.get("at") == found[0].get("at"):
        found[0] |= last
    elif last:
        found.insert(0, last)
    return [
        {
            "at": each.get("at"),
            "cause": cause(each),
            "attempt": each.get("attempt"),
            "message": each.get("message", ""),
        }
        for each in found
    ]


def manifest(job: Json) -> str:
    """The job as YAML, as its user wrote it: without its status and what the API server adds."""
    left_out = ("managedFields", "resourceVersion", "uid", "generation", "creationTimestamp")
    meta = {name: value for name, value in job["metadata"].items() if name not in left_out}
    shown = {name: value for name, value in job.items() if name != "status"} | {"metadata": meta}
    return as_yaml(shown)
