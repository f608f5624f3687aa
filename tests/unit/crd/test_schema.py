"""Properties of the CRD that no API server checks; tests/integration/crd tests its rules."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from kubernetes.client import V1PodSpec

ROOT = Path(__file__).parents[3]
CRD = ROOT / "crds/dtj.dev_distributedtrainingjobs.yaml"
CHART_COPY = ROOT / "charts/dtj-operator/files/crd.yaml"
Json = dict[str, Any]


def schema() -> Json:
    """Return the schema of the one version."""
    (version,) = yaml.safe_load(CRD.read_text())["spec"]["versions"]
    root: Json = version["schema"]["openAPIV3Schema"]
    return root


def nodes(node: Json, path: str = "") -> Iterator[tuple[str, Json]]:
    """Yield every schema below `node` with its path."""
    yield path, node
    for name, child in node.get("properties", {}).items():
        yield from nodes(child, f"{path}.{name}")
    if "items" in node:
        yield from nodes(node["items"], f"{path}[]")


def test_chart_ships_the_same_bytes():
    assert CHART_COPY.read_bytes() == CRD.read_bytes(), "run `make format`"


def test_file_stays_below_60_kb():
    assert len(CRD.read_bytes()) < 60_000


def test_every_field_is_described():
    own = [(path, node) for path, node in nodes(schema()) if path and not path.endswith("[]")]
    assert [
        path for path, node in own if not path.startswith(".metadata") and not node.get("description")
    ] == []


def test_no_integer_is_accepted_that_the_operator_or_a_pod_refuses():
    """A pod's activeDeadlineSeconds is an int64 of which the API server accepts 31 bits."""
    spec = schema()["properties"]["spec"]
    unlimited = [
        path
        for path, node in nodes(spec)
        if node.get("type") == "integer" and node["format"] != "int32" and "maximum" not in node
    ]
    assert unlimited == [".template.spec.terminationGracePeriodSeconds"]  # of which a pod accepts 63 bits


def test_template_declares_every_field_of_a_pod():
    """Otherwise the rule that keeps it from being changed does not see it."""
    template = schema()["properties"]["spec"]["properties"]["template"]
    declared = template["properties"]["spec"]["properties"]
    of_pods = {*V1PodSpec.attribute_map.values()} - {"ephemeralContainers"}  # which no new pod may have
    assert declared.keys() == of_pods


def test_every_rule_says_what_to_write_instead():
    rules = [
        (path, rule) for path, node in nodes(schema()) for rule in node.get("x-kubernetes-validations", ())
    ]
    assert len(rules) > 15
    assert [path for path, rule in rules if len(rule.get("message", "")) < 40] == []


def test_every_column_points_at_a_field():
    fields = {path for path, _ in nodes(schema())} | {".metadata.creationTimestamp"}
    (version,) = yaml.safe_load(CRD.read_text())["spec"]["versions"]
    assert [
        column["jsonPath"]
        for column in version["additionalPrinterColumns"]
        if re.sub(r"\[.*?\]", "[]", column["jsonPath"]) not in fields
    ] == []


def test_fields_of_the_specification_are_these():
    """A field is part of the API forever: adding a field is a decision, not a side effect."""
    assert sorted(schema()["properties"]["spec"]["properties"]) == [
        "activeDeadlineSeconds",
        "checkpoint",
        "cleanPodPolicy",
        "elastic",
        "hang",
        "managedBy",
        "masterPort",
        "network",
        "processesPerReplica",
        "recovery",
        "replicas",
        "scheduling",
        "successPolicy",
        "suspend",
        "template",
        "ttlSecondsAfterFinished",
    ]
