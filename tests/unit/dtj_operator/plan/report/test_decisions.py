"""The log line about a decision: one a decision, with the job's attempt and the replica at fault."""

import io
import json
import logging
from typing import Any

import pytest

from dtj_operator import log
from dtj_operator.model.private import Shortage
from dtj_operator.plan.actions import (
    AllowNodes,
    Fail,
    Fault,
    Resize,
    Restart,
    Resume,
    Succeed,
    Suspend,
    UseReplicaScope,
    Verdict,
)
from dtj_operator.plan.report.decisions import decision_line
from dtj_operator.plan.report.status import new_status
from tests.support.builders import NOW, JobBuilder, at, job

param = pytest.param
TWO = job().replicas(2).running()
FAULT = Fault(reason="ExitCode", replica=1, rank=3, node="w2", exit_code=1, message="x", at=NOW)
AT_FAULT = {"reason": "ExitCode", "replica": 1, "rank": 3, "node": "w2"}
SENTENCE = FAULT.sentence


def line(given: JobBuilder, verdict: Verdict | None) -> dict[str, Any] | None:
    s = given.snapshot()
    return decision_line(s, verdict, new_status(s, verdict))


@pytest.mark.parametrize(
    ("given", "verdict", "expected"),
    [
        param(
            TWO,
            Restart(FAULT, counts=True),
            {"decision": "Restart", **AT_FAULT, "attempt": 1, "counted": True}
            | {"from": "Running", "to": "Recovering", "why": SENTENCE},
            id="a restart names the replica at fault and the attempt that it starts",
        ),
        param(
            TWO.was("Recovering"),
            Restart(FAULT, counts=False, replaces=((1, "u"),)),
            {"decision": "Replace", **AT_FAULT, "attempt": 0, "counted": False, "replaces": [1]}
            | {"from": "Recovering", "to": "Recovering", "why": SENTENCE},
            id="a replacement in an incident that is known, in which the phase stays the same",
        ),
        param(
            TWO,
            Fail("RestartBudgetSpent", "10 of 10 restarts used", FAULT),
            {"decision": "Fail", **AT_FAULT, "reason": "RestartBudgetSpent", "attempt": 0}
            | {"from": "Running", "to": "Failed", "why": "10 of 10 restarts used"},
            id="a failure",
        ),
        param(
            TWO,
            Succeed("AllRanksSucceeded"),
            {"decision": "Succeed", "reason": "AllRanksSucceeded", "attempt": 0}
            | {"from": "Running", "to": "Succeeded", "why": ""},
            id="success",
        ),
        param(
            TWO,
            Resize(1, "smaller", new_attempt=False, shortage=Shortage(replicas=2, tries=1, retry_at=9)),
            {"decision": "Resize", "attempt": 0, "size": 1}
            | {"from": "Running", "to": "Running", "why": "smaller"},
            id="another size of a running attempt",
        ),
        param(
            TWO,
            Suspend(),
            {"decision": "Suspend", "reason": "Suspended", "attempt": 1}
            | {"from": "Running", "to": "Suspended", "why": "spec.suspend is true"},
            id="a suspension",
        ),
        param(
            TWO.was("Suspended"),
            Resume(),
            {"decision": "Resume", "attempt": 0}
            | {"from": "Suspended", "to": "Pending", "why": "spec.suspend is false"},
            id="a resume",
        ),
        param(
            TWO,
            UseReplicaScope(),
            {"decision": "UseReplicaScope", "attempt": 0, "from": "Running", "to": "Running", "why": ""},
            id="another scope",
        ),
        param(
            TWO,
            AllowNodes(((1, "u"),)),
            {"decision": "AllowNodes", "attempt": 0, "replaces": [1]}
            | {"from": "Running", "to": "Running", "why": ""},
            id="avoided nodes are allowed",
        ),
        param(
            TWO.was("Starting"),
            None,
            {"decision": "Observe", "attempt": 0, "from": "Starting", "to": "Running", "why": ""},
            id="the pods started",
        ),
        param(TWO, None, None, id="nothing happened"),
    ],
)
def test_each_decision_is_one_line(
    given: JobBuilder, verdict: Verdict | None, expected: dict[str, Any] | None
) -> None:
    assert line(given, verdict) == expected


def test_node_that_is_avoided_from_now_on_is_named_once() -> None:
    entry = {"node": "w2", "faults": 1, "at": at(-9)}
    given = TWO.was("Running", avoidedNodes=[entry])

    first = line(given, Restart(FAULT, counts=True))
    known = line(TWO.was("Running", avoidedNodes=[entry | {"until": at(3591)}]), Restart(FAULT, counts=True))
    assert first is not None
    assert known is not None
    assert (first["avoids"], known.get("avoids")) == (["w2"], None)


def test_printed_line_has_the_job_and_its_namespace() -> None:
    printed = io.StringIO()
    handler = logging.StreamHandler(printed)
    handler.setFormatter(log.JsonLines())
    record = logging.makeLogRecord({"msg": "decided", **(line(TWO, Restart(FAULT, counts=True)) or {})})
    with log.about("team-a/digits"):
        handler.emit(record)

    fields = json.loads(printed.getvalue())
    names = ("message", "namespace", "job", "attempt", "replica", "reason")
    assert [fields[name] for name in names] == ["decided", "team-a", "digits", 1, 1, "ExitCode"]
