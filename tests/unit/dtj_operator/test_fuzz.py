"""Random resources, answers of agents and termination messages crash nothing and give a valid status.

A document that the operator cannot handle would be retried forever; one that it works on for seconds would
stop all other jobs, because the operator has one thread.
"""

import json
import os
from dataclasses import replace
from random import Random
from typing import Any

import msgspec
import pytest

from dtj_operator.job_metrics import JobTable
from dtj_operator.kube import wire
from dtj_operator.model import agent_status, spec
from dtj_operator.model.children import Child
from dtj_operator.model.memory import Memory
from dtj_operator.model.names import Key
from dtj_operator.model.views import NodeView
from dtj_operator.plan.children.networking import networking
from dtj_operator.plan.planner import plan
from dtj_operator.plan.report import pace
from dtj_operator.plan.report.decisions import decision_line
from dtj_operator.plan.report.status import events, new_status
from dtj_operator.plan.snapshot import Snapshot
from tests.support.builders import NAME, NOW, UID, JobBuilder, at, job, pod
from tests.unit.crd.test_schema import schema
from tests.unit.dtj_operator.documents import WORDS, Json, problems, sample, spoiled

MANY = int(os.environ.get("DTJ_FUZZ", "10000"))  # documents of each kind
# A signal does not interrupt the calculation of a huge number, so a thread ends the process, with stacks.
pytestmark = pytest.mark.timeout(300 + MANY // 100, method="thread")

FIELDS = schema()["properties"]
CONTAINER: Json = {
    **{"name": "trainer", "image": "i", "command": ["python"], "env": [{"name": "A", "value": "1"}]},
    **{"volumeMounts": [{"name": "data", "mountPath": "/data"}], "securityContext": {"runAsUser": 1}},
    "resources": {"limits": {"cpu": "1", "memory": "1Gi", "nvidia.com/gpu": 1}, "requests": {"cpu": "1"}},
}
POD: Json = {
    "containers": [CONTAINER, {"name": "sidecar", "securityContext": {"capabilities": {"add": ["X"]}}}],
    "initContainers": [{"name": "first", "image": "i"}],
    "volumes": [{"name": "data", "emptyDir": {}}],
    "securityContext": {"fsGroup": 1, "supplementalGroups": [1]},
    "nodeSelector": {"zone": "a"},
    "affinity": {
        "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{}]}},
        "podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []},
        "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": []},
    },
    "tolerations": [{"key": "spot"}],
    "schedulingGates": [{"name": "g"}],
    "terminationGracePeriodSeconds": 30,
}
SPEC: Json = {
    "replicas": 2,
    "recovery": {
        **{"scope": "Auto", "maxRestarts": 3, "backoffSeconds": 1, "nodeLostSeconds": 40},
        "rules": [{"action": "FailJob", "onExitCodes": {"operator": "In", "values": [3]}}],
    },
    "hang": {"action": "Restart", "timeoutSeconds": 30, "workingSeconds": 900},
    "elastic": {"minReplicas": 1, "maxReplicas": 3},
    "checkpoint": {"volume": {"persistentVolumeClaim": {"claimName": "c"}}, "resumeFrom": {"job": "j"}},
    "network": {"policy": "Isolated", "allowFrom": [{"podSelector": {}}]},
    "scheduling": {"gang": "Auto", "topology": {"key": "zone", "mode": "Required", "exclusive": True}},
    "successPolicy": {"replicas": [0]},
    "activeDeadlineSeconds": 100,
    "ttlSecondsAfterFinished": 10,
    "processesPerReplica": "auto",
    "suspend": False,
    "template": {"metadata": {"labels": {"a": "b"}, "annotations": {"c": "d"}}, "spec": POD},
}
STATUS: Json = {
    **{"phase": "Running", "attempt": 0, "startTime": at(-60), "lastTransitionTime": at(-60)},
    "restarts": {"total": 2, "counted": 1, "disruptions": 1, "inPlace": 1, "withoutProgress": 0},
    "avoidedNodes": [{"node": "n0", "faults": 2, "at": at(-60)}],
    "goodput": {"productiveSeconds": 9, "startupSeconds": 1, "lostSeconds": 0, "recoveringSeconds": 0},
    "progress": {"step": 7, "totalSteps": 9},
    "failure": {"replica": 0, "reason": "NodeLost", "node": "n0", "at": at(-60)},
    "conditions": [
        {"type": "Healthy", "status": "False", "reason": "R", "message": "m", "lastTransitionTime": at(-60)}
    ],
    "memory": {
        **{"rejoins": True, "wantedReplicas": 2, "replacing": {"0": "u"}, "done": "1"},
        **{"countedAt": [1], "highestStep": 7, "shortage": {"replicas": 3, "tries": 1, "retryAt": 1}},
        "earlierSeconds": {"productiveSeconds": 4},
    },
}
ANSWER: Json = {
    **{"job": NAME, "jobUid": UID, "replica": 0, "attempt": 0, "step": 7, "totalSteps": 9, "epoch": 1},
    **{"loss": 0.5, "samplesPerSecond": 3.5, "etaSeconds": 60.0, "rejoin": True, "worldSize": 2},
    **{"restarts": {"inPlace": 1, "withoutProgress": 1}, "metrics": {"a": 1}, "slowestRank": 1},
    "ledger": {"productive": 1.0, "startup": 2.0, "lost": 0.0, "recovering": 0.0},
    "failure": {
        **{"replica": 0, "rank": 1, "reason": "Signal", "exitCode": 137, "message": "m", "at": "a"},
        "step": 4,
    },
    "slowest": {"rank": 1, "replica": 0, "ratio": 2.5},
    "hang": {"ranks": [1], "message": "no step"},
    "missing": [{"replica": 1, "seconds": 21.5}],
}
REPORT: Json = {
    **{"reason": "Exception", "message": "m", "at": at(-1), "rank": 1, "generation": 0, "step": 4},
    **{"inPlace": 1, "withoutProgress": 0},
    "culprit": {
        **{"replica": 0, "reason": "Signal", "rank": 0, "exitCode": 9, "message": "m", "generation": 0},
        **{"step": 4, "at": at(-2)},
    },
}
LABELS = ("queue-name", "priority-class", "max-exec-time-seconds", "prebuilt-workload-name")
SPECIFICATION, MEMORY, ANSWERED, REPORTED = map(json.dumps, (SPEC, STATUS["memory"], ANSWER, REPORT))
BASE = job().wants(**SPEC)
STATES: tuple[JobBuilder, ...] = (  # of the cluster: what the documents meet
    BASE,
    BASE.running(),
    BASE.placed_as_gang(),
    BASE.running().but(pod(1).reported(1, reason="Exception", rank=1, message="m").on("n0")),
    BASE.running().but(pod(0).running().on("n0"), pod(1).disrupted().deleting()),
    BASE.was("Starting").having(
        pod(0).unschedulable(since=NOW - 900).avoiding(), pod(1).waiting("ErrImagePull")
    ),
    BASE.running().without(1),
    BASE.was("Succeeded", completionTime=at(-5)).having(pod(0).succeeded()),
    BASE.was("Suspended"),
    BASE.running().deleted(),
    BASE.in_queue(),
    BASE.running().in_queue(BASE.workload("QuotaReserved", "Admitted")),
)
SNAPSHOTS = {id(state): state.snapshot() for state in STATES}
NODES = {
    "n0": NodeView(name="n0", ready=False, turned_at=NOW - 900),
    "n1": NodeView(name="n1", labels={"zone": "a"}),
}


def small() -> Json:
    """Return the schema of a spec with at most 5 replicas: 10,000 pods take long and show nothing more."""
    fields: Json = json.loads(json.dumps(FIELDS["spec"]))
    elastic = fields["properties"]["elastic"]["properties"]
    for size in (fields["properties"]["replicas"], elastic["minReplicas"], elastic["maxReplicas"]):
        size["maximum"] = 5
    return fields


def decide(s: Snapshot) -> Json:
    """Do all of a reconcile that is not a request; return the new status."""
    key = Key(s.job.namespace, s.job.name)
    decision = plan(s)
    msgspec.json.encode([action.body for action in decision.actions if hasattr(action, "body")])
    status = new_status(s, decision.verdict)
    events(s, decision.verdict, status)
    decision_line(s, decision.verdict, status)
    pace.write_at(s.memory.raw, status, now=s.now, last_write=0.0, progress_due=True)
    msgspec.json.encode(pace.merge_patch(s.memory.raw, status))
    table = JobTable()
    table.saw(key, s, status)
    table.wrote(key, s, decision.verdict, status)
    return status


def seen(state: JobBuilder, raw: Json, answer: agent_status.Progress | None = None) -> Snapshot:
    """Return what the operator reads: this resource in this state of the cluster."""
    made = spec.parse(raw)
    return replace(
        SNAPSHOTS[id(state)],
        job=made,
        memory=Memory(raw["status"]),
        children=dict.fromkeys(networking(made, ()), Child.PRESENT),
        nodes=NODES,
        answer=answer,
    )


@pytest.mark.parametrize("seed", range(4))
def test_every_custom_resource_is_planned_or_refused(seed: int) -> None:
    chance, accepted = Random(seed), 0
    valid = small()
    for number in range(MANY // 4):
        state = chance.choice((BASE, chance.choice(STATES)))
        raw: Json = {**state.raw(), "status": chance.choice((state.status, STATUS))}
        labels = {f"kueue.x-k8s.io/{name}": chance.choice(WORDS) for name in LABELS if chance.random() < 0.1}
        raw["metadata"]["labels"] = {**raw["metadata"].get("labels", {}), **labels}
        match number % 4:
            case 0:  # valid, with a template that is an ordinary pod
                raw["spec"] = {**sample(chance, valid), "template": SPEC["template"]}
            case 1:  # valid
                raw["spec"] = sample(chance, valid)
            case (
                2
            ):  # strange values here and there, most of them in the template, which the CRD hardly checks
                raw["spec"] = spoiled(chance, SPECIFICATION, most=2)
            case 3:  # any status: a person may have edited it, and then its counters may be too large
                raw["status"] = sample(chance, FIELDS["status"]) | {"memory": spoiled(chance, MEMORY)}
        s = seen(state, raw)
        accepted += s.job.error is None
        status = decide(s)
        assert number % 4 == 3 or list(problems(status, FIELDS["status"])) == [], raw
    assert 0 < accepted < MANY // 4


@pytest.mark.parametrize("seed", range(4))
def test_every_answer_of_an_agent_is_parsed_or_refused(seed: int) -> None:
    chance, accepted = Random(seed), 0
    for _ in range(MANY // 4):
        raw = json.dumps(spoiled(chance, ANSWERED)).encode()
        if chance.random() < 0.2:  # cut it, or change a byte
            start = chance.randrange(len(raw))
            raw = raw[:start] + bytes([chance.randrange(256)]) + raw[start + chance.randint(0, 40) :]
        try:
            answer: Any = agent_status.parse(raw, Key("team-a", NAME), UID, NOW, "10.0.0.1", ranks=2)
        except wire.UNREADABLE:
            continue
        accepted += 1
        state = chance.choice(STATES)
        status = decide(seen(state, state.raw(), answer))
        assert list(problems(status, FIELDS["status"])) == [], raw
    assert 0 < accepted < MANY // 4


def test_every_termination_message_of_a_pod_is_a_report_or_plain_text() -> None:
    chance = Random(0)
    for _ in range(MANY // 4):
        message = json.dumps(spoiled(chance, REPORTED))
        cut = message[: chance.randrange(len(message))] if chance.random() < 0.2 else message
        state = BASE.running().but(pod(1).crashed(chance.choice((0, 1, 75, 137)), message=cut).on("n0"))
        status = decide(state.seeing(nodes=NODES).snapshot())
        assert list(problems(status, FIELDS["status"])) == [], message
