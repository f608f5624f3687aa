"""One screen about a job: what it does, since when and why, and what to do next. Pure."""

import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from itertools import pairwise

from dtj_client.kube.kubectl import Json, index_of

LINES_OF_TRACEBACK = 12
BAR = 40  # columns
MOST_ROWS = 24  # for replicas: a screen
FEW = 5
# The parts of goodput: key of the status, its letter in the bar, its name.
SHARES = (
    ("productive", "#", "productive"),
    ("startup", "+", "start-up"),
    ("lost", "x", "lost"),
    ("recovering", "!", "recovering"),
    ("queued", ".", "queued"),
)
# Reasons of PodsReady whose message ends with what to do, unless it is so long that the operator cut it.
_WITH_A_FIX = (
    *("Unschedulable", "ImagePullFailed", "GangsOff", "UnknownTopology"),
    *("NameConflict", "ContainerCreating", "PodTerminating"),
)
_LONGEST_MESSAGE = 1000
_NO_MODULE = re.compile(r"ModuleNotFoundError: No module named '([\w.]+)'")
_PASSES = {"Recovering": "the operator is replacing what failed", "Terminating": "the job is being deleted"}
_QUEUED = ("Queued", "Evicted")  # reasons of the condition Suspended that need no action of the user
OPERATOR = "kubectl get pods -A -l app.kubernetes.io/name=dtj-operator"


def report(job: Json, pods: Sequence[Json], now: datetime, said: str = "", chosen: str = "") -> Iterator[str]:
    """Yield the lines.

    said    by a kubelet about a pod that cannot start
    chosen  options of kubectl that a command needs to find the job
    """
    name, status = job["metadata"]["name"], job.get("status") or {}
    yield f"{name}: {_headline(status, now)}"
    yield from indented(status.get("message") or _waits(status))
    yield from _progress(job)
    yield from _goodput(status)
    yield from _replicas(job, pods)
    if said:
        yield f"  {plain(said)}"
    yield from _failure(status, now)
    yield f"next: {advice(name + chosen, job)}"


def failures(job: Json) -> Iterator[str]:
    """The last failures, the oldest first: all that is left of the logs of replaced pods."""
    found = (job.get("status") or {}).get("failures") or ()
    if not found:
        yield f"{job['metadata']['name']}: no failure so far"
    for failure in reversed(found):
        yield f"{failure.get('at', '')} {cause(failure)}".strip()
        yield from indented(failure.get("message") or "")


def age(seconds: float) -> str:
    """A duration as kubectl writes it: 45s, 3m20s, 5h12m, 3d4h."""
    total = max(0, int(seconds))
    minutes, hours, days = total // 60, total // 3600, total // 86400
    if total < 120:
        return f"{total}s"
    if hours < 2:
        return f"{minutes}m{total % 60}s" if minutes < 10 else f"{minutes}m"
    if days < 2:
        return f"{hours}h{minutes % 60}m"
    return f"{days}d{hours % 24}h"


def _headline(status: Json, now: datetime) -> str:
    if not status.get("phase"):
        return "the operator has not seen this job yet"
    lasted = since(status.get("lastTransitionTime"), now)
    restarts = (status.get("restarts") or {}).get("total", 0)
    again = f", {restarts} restart{'' if restarts == 1 else 's'}" if restarts else ""
    return f"{status['phase']}{f' for {lasted}' if lasted else ''}, attempt {status.get('attempt', 0)}{again}"


def _waits(status: Json) -> str:
    """What the pods of a job without a problem wait for before they all run, such as the end of old ones."""
    ready = condition(status, "PodsReady")
    is_waiting = status.get("phase") in ("Pending", "Starting") and ready.get("status") == "False"
    return str(ready.get("message") or "") if is_waiting else ""


def _progress(job: Json) -> Iterator[str]:
    status = job.get("status") or {}
    progress, ranks, words = status.get("progress") or {}, status.get("worldSize"), []
    if job["spec"].get("elastic") and status.get("phase") == "Running" and ranks:  # maybe not of each replica
        words.append(f"{ranks} rank{' trains' if ranks == 1 else 's train'}")
    if status.get("step"):
        words.append(f"step {status['step']}")
    if progress.get("samplesPerSecond"):
        words.append(f"{progress['samplesPerSecond']} samples/s")
    if progress.get("loss") is not None:
        words.append(f"loss {progress['loss']}")
    if progress.get("eta") and status.get("phase") == "Running":
        words.append(f"done at about {progress['eta']}")
    if found := stalled(status):
        words.append(found)
    if words:
        yield f"  {', '.join(words)}"


def _goodput(status: Json) -> Iterator[str]:
    """The share of productive time, a bar with the share of each part, and the parts."""
    found = status.get("goodput") or {}
    if found.get("percent") is None:
        return
    spent = [
        (letter, name, seconds)
        for key, letter, name in SHARES
        if (seconds := int(found.get(f"{key}Seconds") or 0)) > 0
    ]
    columns = _divide([seconds for _, _, seconds in spent], BAR)
    drawn = "".join(letter * count for (letter, _, _), count in zip(spent, columns, strict=True))
    yield f"  goodput {found['percent']} %{f' [{drawn}]' if drawn else ''}"
    if spent:
        yield f"    {', '.join(f'{letter} {name} {age(seconds)}' for letter, name, seconds in spent)}"


def _divide(parts: Sequence[int], columns: int) -> list[int]:
    """Columns for each part, at least one; the largest part gets what rounding leaves."""
    counts = [max(1, columns * part // sum(parts)) for part in parts]
    if counts:
        counts[parts.index(max(parts))] += columns - sum(counts)
    return counts


def _replicas(job: Json, pods: Sequence[Json]) -> Iterator[str]:
    by_index = {index_of(pod, job["metadata"]["name"]): pod for pod in pods}
    found = []
    for index in range(int(job["spec"].get("replicas", 1))):
        pod = by_index.get(index)
        state = "no pod" if pod is None else pod_state(pod)
        found.append((index, state, pod["spec"].get("nodeName", "-") if pod else "-"))
    few = [(str(index), state, node) for index, state, node in found]
    rows = [("replica", "pod", "node"), *(few if len(few) <= MOST_ROWS else _by_state(found))]
    widths = [max(len(row[column]) for row in rows) for column in range(2)]
    for row in rows:
        yield f"  {row[0]:{widths[0]}}  {row[1]:{widths[1]}}  {row[2]}"


def _by_state(replicas: Sequence[tuple[int, str, str]]) -> Iterator[tuple[str, str, str]]:
    """A row for each state; states of a few replicas have a row for each, since one looks for their nodes."""
    for state in dict.fromkeys(state for _, state, _ in replicas):
        members = [(index, node) for index, each, node in replicas if each == state]
        if len(members) <= FEW:
            yield from ((str(index), state, node) for index, node in members)
        else:
            nodes = {node for _, node in members}
            place = nodes.pop() if len(nodes) == 1 else f"{len(nodes - {'-'})} nodes"
            yield _spans([index for index, _ in members]), state, place


def _spans(indices: Sequence[int]) -> str:
    """Such as 0-3,7; only their number if that is long."""
    ends = [b for b, after in zip(indices, [*indices[1:], None], strict=True) if after != b + 1]
    starts = [indices[0], *(b for a, b in pairwise(indices) if b != a + 1)]
    spans = [str(a) if a == b else f"{a}-{b}" for a, b in zip(starts, ends, strict=True)]
    return ",".join(spans) if len(spans) <= FEW else f"{len(indices)} replicas"


def pod_state(pod: Json) -> str:
    """What the kubelet or the scheduler says about a pod, in a word or two."""
    if pod["metadata"].get("deletionTimestamp"):
        return "Terminating"
    status = pod.get("status") or {}
    inits: Sequence[Json] = (pod.get("spec") or {}).get("initContainers") or ()
    sidecars = {each["name"] for each in inits if each.get("restartPolicy") == "Always"}
    for container in status.get("initContainerStatuses") or ():
        state = container.get("state") or {}
        if (reason := (state.get("waiting") or {}).get("reason", "")) not in ("", "PodInitializing"):
            return f"{container['name']}: {reason}"
        if container["name"] in sidecars:  # it runs beside the ranks, and is killed after them
            continue
        if code := (state.get("terminated") or {}).get("exitCode"):
            return f"{container['name']}: exit code {code}"
        if "running" in state:
            return f"{container['name']} runs"
    for container in status.get("containerStatuses") or ():
        state = container.get("state") or {}
        if "waiting" in state:
            return str(state["waiting"].get("reason", "Waiting"))
        if state.get("terminated", {}).get("exitCode"):
            return f"exit code {state['terminated']['exitCode']}"
    scheduled = condition(status, "PodScheduled")
    if scheduled.get("status") == "False":
        return str(scheduled.get("reason", "Unschedulable"))
    return str(status.get("phase", "Pending"))


def failed_init(pod: Json) -> str:
    """The init container because of which no other container of the pod has started; empty: there is none."""
    status = pod.get("status") or {}
    if any("waiting" not in each["state"] for each in status.get("containerStatuses") or ()):
        return ""
    inits = status.get("initContainerStatuses") or ()
    codes = {
        each["name"]: ((each.get("state") or {}).get("terminated") or {}).get("exitCode") for each in inits
    }
    return next((name for name, code in codes.items() if code), "")


def _failure(status: Json, now: datetime) -> Iterator[str]:
    failure = status.get("failure")
    if not failure:
        return
    when = since(failure.get("at"), now)
    yield f"  last failure: {cause(failure)}{f', {when} ago' if when else ''}"
    said = [*indented(failure.get("message") or "")]
    yield from (f"  {line}" for line in said[-LINES_OF_TRACEBACK:])


def cause(failure: Json) -> str:
    """Such as: Exception of rank 3 (replica 1) on node a, exit code 1."""
    who = (
        f"rank {failure['rank']} (replica {failure['replica']})"
        if "rank" in failure
        else (f"replica {failure.get('replica', '?')}")
    )
    where = f" on node {failure['node']}" if failure.get("node") else ""
    code = f", exit code {failure['exitCode']}" if failure.get("exitCode") is not None else ""
    return f"{failure.get('reason')} of {who}{where}{code}"


def indented(message: str) -> Iterator[str]:
    """The lines of a message."""
    yield from (f"  {plain(line)}" for line in message.rstrip().splitlines())


def at_stake(job: Json) -> str:
    """What is lost with the pods of a job although it is asked to save; empty: nothing that one sees here."""
    status = job.get("status") or {}
    done, _ = steps(status.get("step"))
    if not done and status.get("phase") != "Running":
        return ""
    if not job["spec"].get("checkpoint"):
        what = f"{done} steps are" if done else "work is"
        return f"it has no spec.checkpoint: its {what} lost, unless the program saves elsewhere"
    if condition(status, "Healthy").get("reason") == "SaveFailed":
        return (
            "its last save failed: the steps since its newest checkpoint are lost, unless the next one works"
        )
    return ""


def advice(name: str, job: Json) -> str:
    """What a user can do now.

    name  of the job, with the options that a command needs to find it
    """
    status = job.get("status") or {}
    blocked = condition(status, "PodsReady")
    match status.get("phase"):
        case "Succeeded":
            return f"kubectl dtj logs {name}"
        case "Failed":
            return _advice_if_failed(name, status)
        case "Suspended":
            return _advice_if_suspended(name, job)
        case "Pending" | "Starting" | "Recovering" if (
            blocked.get("status") == "False" and blocked.get("reason") != "Starting"
        ):
            reason, message = str(blocked.get("reason")), str(blocked.get("message") or "")
            before, _, fix = message.rpartition("; ")
            says_how = before and reason in _WITH_A_FIX and len(message) < _LONGEST_MESSAGE
            what = plain(fix) if says_how else "remove the cause that the message above names"
            if reason == "PodRejected":
                what += "; if it is in the job, delete that and submit it corrected"
            return f"{what}; kubectl dtj events {name} has the details"
        case "Recovering" | "Terminating" as phase:
            # Behind the number of pods: what they wait for, such as the end of a back-off.
            waits = str(blocked.get("message") or "").partition("; ")[2] if phase == "Recovering" else ""
            return f"nothing: {_PASSES[phase]}{waits and f'; {plain(waits)}'}"
        case "Running" if condition(status, "Healthy").get("status") == "False" or stalled(status):
            if condition(status, "Healthy").get("reason") == "SaveFailed":
                found = "remove the cause that the message above names; each save tries again"
            else:
                found = f"kubectl dtj stacks {name} shows what the ranks do"
            return found
        case None:
            return f"if this lasts, check that the operator runs: {OPERATOR}"
    return f"kubectl dtj logs -f {name}"


def _advice_if_failed(name: str, status: Json) -> str:
    kept = any((status.get("replicaStatuses") or {}).values())
    logs = f"; kubectl dtj logs {name} has the logs" if kept else ""
    said = (status.get("message") or "", (status.get("failure") or {}).get("message") or "")
    if lacks := _NO_MODULE.search("\n".join(said)):
        install = "kubectl dtj submit --requirements requirements.txt ... installs"
        own = "if it is a file of yours, correct the import, or see what submit has not sent"
        return f"{install} packages that the image lacks, such as {lacks[1]}; {own}{logs}"
    return f"correct the cause above and submit the job again{logs}"


def _advice_if_suspended(name: str, job: Json) -> str:
    """By its user, or by its queue."""
    reason = condition(job["status"], "Suspended").get("reason", "Suspended")
    if reason in _QUEUED:
        return "nothing: Kueue starts the job when its queue has quota for it"
    if reason != "Suspended":
        return f"do what the message above says; kubectl dtj events {name} has the details"
    return "; ".join(filter(None, (f"kubectl dtj resume {name}", at_stake(job))))


def steps(text: str | None) -> tuple[int, int]:
    """Steps that are done, and of how many, in a status such as 120/2000; 0: it does not say it."""
    done, _, total = str(text or "").partition("/")
    return int(done) if done.isdecimal() else 0, int(total) if total.isdecimal() else 0


def condition(status: Json, kind: str) -> Json:
    """A condition of the status; empty if the operator has not set it."""
    return next((c for c in status.get("conditions") or () if c["type"] == kind), {})


def since(moment: str | None, now: datetime) -> str:
    """How long ago a moment in RFC 3339 was; empty without one."""
    if not moment:
        return ""
    return age((now - datetime.fromisoformat(moment).astimezone(UTC)).total_seconds())


def stalled(status: Json) -> str:
    """For how many minutes a running job has reported no newer step; empty if it is less, or unknown.

    By the moment of the last answer: with many jobs the status may be minutes old.
    """
    progress, ready = status.get("progress") or {}, condition(status, "PodsReady")
    moments = (progress.get("observedAt"), progress.get("stepAt"), ready.get("lastTransitionTime"))
    if status.get("phase") != "Running" or ready.get("status") != "True" or not all(moments):
        return ""
    seen, *began = [datetime.fromisoformat(str(moment)) for moment in moments]
    minutes = int((seen - max(began)).total_seconds()) // 60
    return f"no newer step for {minutes} min" if minutes > 0 else ""


def plain(line: str) -> str:
    """The line without control characters, which a program could use to change the terminal."""
    return "".join(letter if letter.isprintable() or letter == "\t" else "?" for letter in line)
