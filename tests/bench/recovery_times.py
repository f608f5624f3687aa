"""Logs and watches of a recovery -> when each of its stages ended. Pure; seconds since 1970.

    fault -> detected -> decided -> pod runs -> program begins -> ranks joined -> first new step on all ranks

All times are from one machine's clock: the nodes are containers on it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

STAGES = ("detect", "decide", "pod runs", "program begins", "rendezvous", "first step")
RANK, HANG, POD, NODE = "rank", "hang", "pod", "node"
# Lines that show that the agents know of the fault.
_DETECTED = {
    RANK: re.compile(r"dtj: rank \d+ (was killed|failed|exited)"),
    HANG: re.compile(r"dtj: no step for \d+ s: the stacks of all ranks follow"),
    POD: re.compile(r"dtj: (replica \d+ is lost|lost replica 0|replica \d+ is silent|replica 0 is silent)"),
}
_STEP = re.compile(r"\bdid step \d+$")
_DECIDED = re.compile(r"dtj: generation \d+: ")


@dataclass(frozen=True, kw_only=True)
class Line:
    """One line of a pod's log."""

    at: float
    text: str


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What a watch has shown of a replacement, of a lost node and of its job; None if not seen yet.

    unready  Kubernetes reported the node NotReady
    blamed   the job's status blames the node: the operator did not wait for Kubernetes
    """

    unready: float | None = None
    blamed: float | None = None
    created: float | None = None
    running: float | None = None


def parse(log: str) -> list[Line]:
    """A log as `kubectl logs --timestamps` prints it."""
    found = []
    for line in log.splitlines():
        stamp, _, text = line.partition(" ")
        if re.match(r"\d{4}-\d\d-\d\dT", stamp):
            found.append(Line(at=datetime.fromisoformat(stamp).timestamp(), text=text))
    return found


def marks(
    kind: str, *, fault: float, victim: str, logs: Mapping[str, Sequence[Line]], seen: Seen
) -> dict[str, float] | None:
    """When each stage ended, in order; None until all ranks have done a new step.

    victim  the pod whose rank was lost; its log is that of the replacement
    logs    of all pods of the job
    """
    after = {pod: [line for line in lines if line.at > fault] for pod, lines in logs.items()}
    everybody = sorted((line for lines in after.values() for line in lines), key=lambda line: line.at)
    if kind in {RANK, HANG}:
        detected = _first(everybody, _DETECTED[kind].search)
        decided = _first(everybody, _DECIDED.search)
        running = None
    else:
        decided, running = seen.created, seen.running
        if decided is None or running is None:
            return None
        if kind == NODE:
            heard = min((at for at in (seen.unready, seen.blamed) if at is not None), default=None)
        else:
            heard = _first(everybody, _DETECTED[POD].search)
        detected = min(heard or decided, decided)  # the operator may know before the agents do
    began = _first(after[victim], re.compile(r"\bbegan$").search)
    joined = _first(after[victim], re.compile(r"\bjoined$").search)
    if began is None or joined is None:
        return None
    steps = [_first((li for li in lines if li.at > joined), _STEP.search) for lines in after.values()]
    if None in steps:
        return None
    times = (detected, decided, running, began, joined, max(step for step in steps if step is not None))
    return {stage: at for stage, at in zip(STAGES, times, strict=True) if at is not None}


def stages(fault: float, found: Mapping[str, float]) -> dict[str, float]:
    """Seconds of each stage, and of `all`; a stage that ended before the previous one took no time."""
    spent, at = {}, fault
    for stage in STAGES:
        if stage in found:
            spent[stage] = max(0.0, found[stage] - at)
            at = max(at, found[stage])
    return spent | {"all": at - fault}


def percentile(samples: Sequence[float], share: float) -> float:
    """Linear between the samples; share from 0 to 1."""
    ordered = sorted(samples)
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


def _first(lines: Iterable[Line], matches: Callable[[str], object]) -> float | None:
    return next((line.at for line in lines if matches(line.text)), None)
