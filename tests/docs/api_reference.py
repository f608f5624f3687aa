"""docs/api.md: every field of a job, from the CRD; `make format` renews it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import yaml

from tests.docs.blocks import ROOT

PAGE = ROOT / "docs/api.md"
CRD = ROOT / "crds/dtj.dev_distributedtrainingjobs.yaml"
HEAD = """# Every field of a DistributedTrainingJob

From the CRD, by which the API server checks each job; `kubectl explain dtj.spec` prints the same texts for
the version that your cluster has. `[]` is an item of a list, `{}` a value of a map.
"""
TABLE = "| field | type | default | meaning |\n|---|---|---|---|\n"
KUBERNETES_TYPES = ("spec.template", "spec.checkpoint.volume", "spec.network.allowFrom")
Json = dict[str, Any]


def fields(path: str, schema: Json) -> Iterator[tuple[str, Json, bool]]:
    """Yield path, schema and whether it is required, of all our fields below."""
    required = schema.get("required", ())
    for name, field in schema.get("properties", {}).items():
        inner = f"{path}.{name}" if path else name
        yield inner, field, name in required
        if inner not in KUBERNETES_TYPES:
            yield from fields(inner, field)
    items, values = schema.get("items"), schema.get("additionalProperties")
    if isinstance(items, dict):
        yield from fields(f"{path}[]", items)
    if isinstance(values, dict):
        yield from fields(f"{path}{{}}", values)


def kind(schema: Json) -> str:
    """Return the type of a field and its bounds, for a reader."""
    if schema.get("x-kubernetes-int-or-string"):
        return "integer or string"
    if "enum" in schema:
        return " or ".join(f"`{value}`" for value in schema["enum"])
    if "type" not in schema:
        return "any"
    if schema["type"] == "array":
        return "list of " + kind(schema["items"])
    if isinstance(schema.get("additionalProperties"), dict):
        return "map of " + kind(schema["additionalProperties"])
    least, most = schema.get("minimum"), schema.get("maximum")
    bounds = [f"at least {least}"] if least is not None else []
    bounds += [f"at most {most}"] if most is not None else []
    if schema.get("format") == "date-time":
        return "time"
    return ", ".join([schema["type"], *bounds])


def row(path: str, schema: Json, *, required: bool) -> str:
    """Return the row of one field."""
    default = "required" if required else f"`{json.dumps(schema['default'])}`" if "default" in schema else ""
    text = (
        " ".join(schema.get("description", "").split())
        .replace("|", "\\|")
        .replace("<", "&lt;")
        .replace("*", "\\*")
    )
    return f"| `{path}` | {kind(schema)} | {default} | {text} |\n"


def page() -> str:
    """Return the whole page."""
    (version,) = yaml.safe_load(CRD.read_text())["spec"]["versions"]
    schema = version["schema"]["openAPIV3Schema"]
    parts = [HEAD]
    for part in ("spec", "status"):
        found = schema["properties"][part]
        rows = "".join(row(path, field, required=required) for path, field, required in fields(part, found))
        parts.append(f"\n## {part}\n\n{found['description']}\n\n{TABLE}{rows}")
    return "".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page())
