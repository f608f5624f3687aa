"""values.yaml, the schema and the README list the same values; tests/integration/chart renders them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

CHART = Path(__file__).parents[3] / "charts/dtj-operator"
SEPARATE = re.compile(r"(?:`[^`]*`|[^,`])+")  # what is between commas that are not within a code span
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


def in_readme() -> Iterator[tuple[str, str]]:
    """Yield each value in the table of the README, and its default there; a row may have one for all."""
    for line in (CHART / "README.md").read_text().splitlines():
        if line.startswith("| `"):
            names, defaults = (SEPARATE.findall(cell) for cell in line.split("|")[1:3])
            same = defaults * len(names) if len(defaults) == 1 else defaults
            yield from zip((name.strip(" `") for name in names), (each.strip() for each in same), strict=True)


def test_every_value_is_in_the_readme_and_nothing_else_is():
    values = set(leaves(yaml.safe_load((CHART / "values.yaml").read_text())))
    assert {name for name, _ in in_readme()} == values


@pytest.mark.parametrize(("name", "shown"), [*in_readme()])
def test_default_in_the_readme_is_that_of_the_chart(name: str, shown: str):
    """In words only if the chart's default is empty, which says what that means."""
    default: Any = yaml.safe_load((CHART / "values.yaml").read_text())
    for part in name.split("."):
        default = default[part]
    in_words = not (shown.startswith("`") and shown.endswith("`"))
    assert (not default) if in_words else yaml.safe_load(shown.strip("`")) == default


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
    assert set(names(schema)) - {"global"} == set(leaves(yaml.safe_load((CHART / "values.yaml").read_text())))


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
