"""Custom resources and answers of agents with random values in place of random fields crash nothing."""

import json
import os
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from random import Random
from typing import Any

from dtj_operator.kube import wire
from dtj_operator.model import agent_status, spec
from dtj_operator.model.names import Key
from dtj_operator.plan.planner import plan
from dtj_operator.plan.report.status import new_status
from tests.support.builders import job

MANY = int(os.environ.get("DTJ_FUZZ", "500"))  # objects of each kind
STRANGE: tuple[Any, ...] = (
    *(None, True, 0, -1, 1.5, 2**31, 2**63, 1e308, "", "x", "-1", "9" * 400, "é\U0001f600\x00\ud7ff"),
    *([], [None], [[]], [{}], {}, {"": None}, {"a": {"b": ["c"]}}, "2026-01-01T00:00:00Z", "0000-00-00"),
)
ANSWER = {
    **{
        "job": "j",
        "jobUid": "u",
        "replica": 0,
        "attempt": 0,
        "step": 7,
        "totalSteps": 9,
        "epoch": 1,
        "loss": 0.5,
    },
    **{
        "samplesPerSecond": 3.5,
        "etaSeconds": 60.0,
        "rejoin": True,
        "restarts": {"inPlace": 1},
        "metrics": {"a": 1},
    },
    "ledger": {"productive": 1.0, "startup": 2.0, "lost": 0.0, "recovering": 0.0},
    "failure": {
        "replica": 0,
        "rank": 1,
        "reason": "Signal",
        "exitCode": 137,
        "message": "m",
        "at": "a",
        "step": 4,
    },
    "slowest": {"rank": 1, "replica": 0, "ratio": 2.5},
    "hang": {"ranks": [1], "message": "no step"},
    "missing": [{"replica": 1, "seconds": 21.5}],
}


def places(node: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every value in a document."""
    children = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for name, child in children:
        yield (*path, name)
        yield from places(child, (*path, name))


def spoiled(chance: Random, document: Any) -> Any:
    """Replace one to four values of a copy of the document."""
    document = json.loads(json.dumps(document))
    for _ in range(chance.randint(1, 4)):
        *path, name = chance.choice(list(places(document)))
        node = document
        for step in path:
            node = node[step]
        node[name] = deepcopy(chance.choice(STRANGE))
    return document


def test_every_custom_resource_is_planned_or_refused() -> None:
    chance = Random(1)
    template = {
        "metadata": {"labels": {"a": "b"}},
        "spec": {"containers": [{"name": "trainer", "image": "i", "resources": {"limits": {"cpu": "1"}}}]},
    }
    fields: dict[str, Any] = {
        "recovery": {"scope": "Auto", "maxRestarts": 3, "backoffSeconds": 1, "nodeLostSeconds": 40},
        "hang": {"action": "Restart", "timeoutSeconds": 30},
        "elastic": {"minReplicas": 1, "maxReplicas": 3},
        "checkpoint": {"volume": {"persistentVolumeClaim": {"claimName": "c"}}},
        "network": {"isolation": "Isolated"},
        "activeDeadlineSeconds": 100,
        "ttlSecondsAfterFinished": 10,
        "processesPerReplica": "auto",
        "suspend": False,
        "template": template,
    }
    valid = job().replicas(2).wants(**fields).raw()
    valid_ones = 0
    seen = job().replicas(2).running().snapshot()
    for _ in range(MANY):
        raw = spoiled(chance, valid["spec"])
        given = {**valid, "spec": raw if isinstance(raw, dict) else {}}
        s = replace(seen, job=spec.parse(given))
        valid_ones += s.job.error is None
        new_status(s, plan(s).verdict)
    assert 0 < valid_ones < MANY


def test_every_answer_of_an_agent_is_parsed_or_refused() -> None:
    chance = Random(2)
    accepted = 0
    for _ in range(MANY):
        raw = json.dumps(spoiled(chance, ANSWER)).encode()
        if chance.random() < 0.2:  # cut it, or change a byte
            at = chance.randrange(len(raw))
            raw = raw[:at] + bytes([chance.randrange(256)]) + raw[at + chance.randint(0, 40) :]
        try:
            agent_status.parse(raw, Key("ns", "j"), "u", 0.0, "10.0.0.1", ranks=2)
        except wire.UNREADABLE:
            continue
        accepted += 1
    assert 0 < accepted < MANY
