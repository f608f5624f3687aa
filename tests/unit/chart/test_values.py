"""values.yaml, the schema and the README list the same values; tests/integration/chart renders them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft7Validator  # type: ignore[import-untyped]

from tests.docs import chart_values
from tests.unit.dtj_operator.model.test_peers import ACCEPTED, REFUSED, block

CHART = Path(__file__).parents[3] / "charts/dtj-operator"
Json = dict[str, Any]
GIVEN_WHOLE = {
    "resources",
    "nodeSelector",
    "affinity",
    "podLabels",
    "podAnnotations",
    "labels",
    "commonLabels",
}
GIVEN_WHOLE |= {"podSecurityContext", "securityContext", "strategy"}


def leaves(values: Json, path: str = "") -> Iterator[str]:
    """Yield the dotted name of every value that a user may set."""
    for name, value in values.items():
        if isinstance(value, dict) and value and name not in GIVEN_WHOLE:
            yield from leaves(value, f"{path}{name}.")
        else:
            yield f"{path}{name}"


def test_table_in_the_readme_is_that_of_the_values():
    page = chart_values.PAGE.read_text()
    assert chart_values.renewed(page) == page, "run make format"


def test_every_value_is_in_the_table_with_a_description():
    values = set(leaves(yaml.safe_load((CHART / "values.yaml").read_text())))
    named: set[str] = set()
    for row in chart_values.rows():
        names, _, what = row.split(" | ")
        assert len(what.strip(" |\n")) > 10, row
        for name in re.findall(r"`([^`]+)`", names):
            named |= {each for each in values if each == name or each.startswith(f"{name}.")}
    assert named == values


def test_every_value_is_in_the_schema_and_nothing_else_is():
    def names(schema: Json, path: str = "") -> Iterator[str]:
        for name, value in schema.get("properties", {}).items():
            child = definitions.get(str(value.get("$ref")).rpartition("/")[2], value)
            if "properties" in child and name not in GIVEN_WHOLE:
                yield from names(child, f"{path}{name}.")
            else:
                yield f"{path}{name}"

    schema = json.loads((CHART / "values.schema.json").read_text())
    definitions = schema["definitions"]
    of_parents = {"global", "enabled"}
    assert set(names(schema)) - of_parents == set(leaves(yaml.safe_load((CHART / "values.yaml").read_text())))


@pytest.mark.parametrize("peer", [pytest.param(peer, id=name) for name, peer in ACCEPTED])
def test_schema_accepts_the_peers_that_the_operator_takes(peer: Json):
    assert not problems_of_peer(peer)


# What a short pattern cannot find; the operator does.
SUBTLE = {
    "a part outside",
    "a part of the other family",
    "a block without all of it",
    "a key with an empty part",
}


@pytest.mark.parametrize(
    "peer",
    [
        *(pytest.param(peer, id=name) for name, peer, _ in REFUSED if name not in SUBTLE),
        *(pytest.param(block(cidr), id=cidr) for cidr in ("10.1.2.3/8", "10.1.2.3/16", "10.1.2.3/24")),
    ],
)
def test_schema_refuses_the_peers_that_stop_the_operator(peer: Json):
    """Helm tells the user at once; otherwise the operator would end at each start."""
    assert problems_of_peer(peer)


def problems_of_peer(peer: Json) -> list[str]:
    schema = json.loads((CHART / "values.schema.json").read_text())
    found = Draft7Validator(schema).iter_errors({"network": {"allowFrom": [peer]}})
    return [error.message for error in found if [*error.absolute_path][:1] == ["network"]]


def test_series_of_kube_state_metrics_are_fields_of_the_crd():
    (version,) = yaml.safe_load((CHART / "files/crd.yaml").read_text())["spec"]["versions"]
    (resource,) = yaml.safe_load((CHART / "files/kube-state-metrics.yaml").read_text())["spec"]["resources"]
    for metric in resource["metrics"]:
        kind = metric["each"]["type"]
        found = metric["each"][kind[0].lower() + kind[1:]]
        schema = version["schema"]["openAPIV3Schema"]
        for name in found["path"]:
            assert name in schema["properties"], (metric["name"], name)
            schema = schema["properties"][name]
        if kind == "StateSet":
            assert found["list"] == schema["enum"]
