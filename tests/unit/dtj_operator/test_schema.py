"""The operator and the CRD agree: the same defaults, and no status field that the API server would drop.

A dropped field would differ at every reconcile, and be written again at every reconcile.
"""

from pathlib import Path
from typing import Any

import yaml

from dtj_operator.model.agent_status import InPlace, Ledger, Progress
from dtj_operator.model.private import Shortage
from dtj_operator.model.views import NodeView
from dtj_operator.plan.actions import Fail, Fault, Resize, Restart
from dtj_operator.plan.policies.avoid import MAX_RECORDED
from dtj_operator.plan.report.attempt import MAX_DOMAINS
from dtj_operator.plan.report.status import MAX_FAILURES, new_status
from tests.support.builders import NOW, job, pod

CRD = yaml.safe_load(
    (Path(__file__).parents[3] / "crds" / "dtj.dev_distributedtrainingjobs.yaml").read_text()
)
SCHEMA = CRD["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]


def defaults(schema: dict[str, Any]) -> dict[str, Any]:
    """The object that the API server fills in for an empty one."""
    made = {}
    for name, field in schema["properties"].items():
        if "default" in field:
            made[name] = (
                defaults(field) if field["default"] == {} and "properties" in field else field["default"]
            )
    return made


def unknown(value: object, schema: dict[str, Any], path: str = "status") -> list[str]:
    """Paths of fields that the schema does not have, or that have another type."""
    if isinstance(value, dict):
        if schema.get("x-kubernetes-preserve-unknown-fields"):
            return []
        fields = schema.get("properties", {})
        found = [f"{path}.{name}" for name in value if name not in fields]
        return found + [
            p for n, v in value.items() if n in fields for p in unknown(v, fields[n], f"{path}.{n}")
        ]
    if isinstance(value, list):
        return [p for item in value for p in unknown(item, schema["items"], f"{path}[]")]
    expected = {"string": str, "integer": int, "boolean": bool}[schema["type"]]
    return [] if type(value) is expected else [f"{path} is {value!r}, not {schema['type']}"]


def test_manifest_with_the_defaults_of_the_schema_is_the_same_job_as_one_without() -> None:
    bare = job()
    filled = bare.wants(**defaults(SCHEMA["spec"]))

    assert "maxRestarts" in filled.spec["recovery"], "the schema's defaults were found"
    assert filled.job() == bare.job()


def test_every_enum_of_the_schema_is_understood() -> None:
    for value in SCHEMA["spec"]["properties"]["cleanPodPolicy"]["enum"]:
        assert job().wants(cleanPodPolicy=value).job().clean_pods == value
    for value in SCHEMA["spec"]["properties"]["recovery"]["properties"]["scope"]["enum"]:
        assert job().recovery(scope=value).job().error is None
    for value in SCHEMA["spec"]["properties"]["hang"]["properties"]["action"]["enum"]:
        assert job().wants(hang={"action": value}).job().hang.action == value
    for value in SCHEMA["spec"]["properties"]["checkpoint"]["properties"]["fsGroupPolicy"]["enum"]:
        checkpoint = {"volume": {"emptyDir": {}}, "fsGroupPolicy": value}
        assert job().wants(checkpoint=checkpoint).job().error is None


def test_limits_of_the_code_match_the_schema() -> None:
    status = SCHEMA["status"]["properties"]

    assert status["avoidedNodes"]["maxItems"] == MAX_RECORDED
    assert status["domains"]["maxItems"] == MAX_DOMAINS
    assert status["failures"]["maxItems"] == MAX_FAILURES


def test_every_status_field_is_in_the_schema_with_its_type() -> None:
    fault = Fault(
        reason="Signal",
        replica=1,
        rank=3,
        node="n",
        exit_code=139,
        signal="SIGSEGV",
        message="m",
        at=NOW,
        generation=0,
    )
    progress = Progress(
        attempt=0,
        observed_at=NOW,
        step=3,
        total_steps=9,
        epoch=1,
        loss=0.5,
        samples_per_second=8.0,
        eta_s=60,
        restarts=InPlace(in_place=1),
        ledger=Ledger(productive=9),
    )
    full = job().replicas(3).elastic(1, 3).running().but(pod(1).crashed(), pod(2).succeeded())
    full = full.was("Running", memory={"wantedReplicas": 3}, goodput={"lostSeconds": 1})
    full = full.wants(scheduling={"topology": {"key": "rack"}})
    nodes = {view.node: NodeView(name=view.node, labels={"rack": "r1"}) for view in full.pods}
    snapshot = full.seeing(answer=progress, nodes=nodes).snapshot()
    fields: set[str] = set()
    for verdict in (
        Fail("NoProgress", "why", fault),
        Restart(fault, counts=True, replaces=((1, "u"),)),
        Resize(2, "no capacity", new_attempt=True, shortage=Shortage(replicas=3, tries=1, retry_at=int(NOW))),
        None,
    ):
        status = new_status(snapshot, verdict)
        fields |= status.keys()
        assert unknown(status, SCHEMA["status"]) == []
        assert status["phase"] in SCHEMA["status"]["properties"]["phase"]["enum"]

    assert fields == SCHEMA["status"]["properties"].keys(), "every field of the schema is written"


def test_unknown_fields_are_detected() -> None:
    assert unknown({"phase": 1, "typo": "x"}, SCHEMA["status"]) == [
        "status.typo",
        "status.phase is 1, not string",
    ]
