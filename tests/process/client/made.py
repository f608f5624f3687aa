"""Documents for the page of one job, made by the code that makes those of a cluster."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from dtj_client.show import readings
from dtj_client.show.logs import Line
from dtj_client.show.report import advice
from dtj_client.ui import curves, views
from dtj_client.ui.timeline import timeline

Json = dict[str, Any]


def at(now: datetime, minutes: float) -> str:
    """RFC 3339, so many minutes before now."""
    return (
        (now - timedelta(minutes=minutes))
        .astimezone(UTC)
        .isoformat(timespec="seconds")
        .replace("+00:00", "Z")
    )


def job(now: datetime, *, replicas: int, message: str) -> Json:
    """A job that trains again after a failure of rank 3."""
    failure = {
        "replica": 1,
        "rank": 3,
        "node": "gpu-07",
        "reason": "Exception",
        "exitCode": 1,
        "at": at(now, 31),
    }
    return {
        "apiVersion": "dtj.dev/v1alpha1",
        "kind": "DistributedTrainingJob",
        "metadata": {
            "name": "gpt-small",
            "namespace": "team",
            "uid": "u",
            "creationTimestamp": at(now, 95),
        },
        "spec": {
            "replicas": replicas,
            "template": {"spec": {"containers": [{"name": "trainer", "image": "trainer:1"}]}},
        },
        "status": {
            "phase": "Running",
            "startTime": at(now, 92),
            "lastTransitionTime": at(now, 29),
            "ready": f"{replicas}/{replicas}",
            "step": "4200/20000",
            "attempt": 1,
            "worldSize": 2 * replicas,
            "progress": {
                "step": 4200,
                "totalSteps": 20000,
                "loss": "3.01",
                "samplesPerSecond": "812",
                "eta": at(now, -180),
            },
            "goodput": {
                "percent": "93.1",
                "productiveSeconds": 5130,
                "startupSeconds": 95,
                "lostSeconds": 60,
                "recoveringSeconds": 140,
                "queuedSeconds": 85,
            },
            "restarts": {"total": 1},
            "failures": [{**failure, "attempt": 0, "message": message[-500:]}],
            "failure": {**failure, "message": message},
        },
    }


def pods(now: datetime, replicas: int) -> list[Json]:
    """Pods that run; every 100th waits."""
    return [
        {
            "metadata": {"name": f"gpt-small-{index}"},
            "spec": {"nodeName": f"gpu-{index // 8:02}"},
            "status": {"phase": "Pending" if index % 100 == 99 else "Running", "startTime": at(now, 30)},
        }
        for index in range(replicas)
    ]


def logged(now: datetime, steps: int) -> list[Line]:
    """What rank 0 logs, with a restart after which steps are repeated."""
    chance = random.Random(0)
    order = [*range(10, steps * 2 // 3, 10), *range(steps * 2 // 3 - 200, steps, 10)]
    return [
        Line(
            at(now, 92 - 92 * place / len(order)),
            0,
            f"[rank 0] step {step}/20000  epoch 0  loss {chance.gauss(2.9, 0.06) + 7 / (1 + step / 90):.4f}"
            f"  {chance.gauss(812, 14):.0f} samples/s  data wait 2%",
        )
        for place, step in enumerate(order)
    ]


def step_times(now: datetime, ranks: int, columns: int) -> curves.StepTimes:
    """Answers of an agent, every 4 s; rank 5 gets slower."""
    chance = random.Random(1)
    found, done = curves.StepTimes(), [0.0] * ranks
    for column in range(columns):
        for rank in range(ranks):
            slow = 1 + (0.8 if rank == 5 and column > columns / 2 else 0.0)
            done[rank] += 4 / (0.05 * slow * chance.gauss(1, 0.03))
        answer = {"ranks": [{"rank": rank, "step": int(done[rank])} for rank in range(ranks)]}
        found.see(answer, at(now, (columns - column) * 4 / 60), column * 4.0)
    return found


def document(
    now: datetime, *, replicas: int = 4, message: str = "ValueError: bad sample", lines: Sequence[Line] = ()
) -> Json:
    """The document of the page."""
    made = job(now, replicas=replicas, message=message)
    events = [
        {"at": at(now, 30.8), "type": "Warning", "reason": "Restarting", "count": 1,
         "message": "Restarting 1 pod (attempt 0): rank 3 on node gpu-07 failed"},
    ]  # fmt: skip
    phases = [
        ("Starting", at(now, 92)),
        ("Running", at(now, 90)),
        ("Recovering", at(now, 31)),
        ("Running", at(now, 29)),
    ]
    found = {
        "context": "test",
        "job": views.row(made),
        "message": "",
        "advice": advice("gpt-small", made),
        "attempt": 1,
        "ranks": 2 * replicas,
        "goodput": views.goodput(made["status"]),
        "timeline": timeline(made, phases, events),
        "curves": curves.curves(readings.of_lines(lines)),
        "heat": {**step_times(now, 2 * replicas, 40).heat(), "problem": ""},
        "slow": "",
        "failures": views.failures(made["status"]),
        "replicas": views.replicas(made, pods(now, replicas)),
        "events": events,
        "manifest": views.manifest(made),
        "problem": "",
    }
    return dict(json.loads(json.dumps(views.printable(found))))
