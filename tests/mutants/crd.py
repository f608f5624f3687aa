"""Mutants of the CRD's rules in a real API server: see tests/mutants/__main__.py.

Each mutant changes one limit, enum, required field, default or CEL rule of the spec. Then the tests of the
CRD run against it, except those of texts.
"""

from __future__ import annotations

import contextlib
import copy
import io
import json
import random
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.integration import controlplane
from tests.integration.api import JOBS
from tests.integration.controlplane import CRD, CRDS, ControlPlane
from tests.integration.direct import STRICT, Direct
from tests.support.kubectl import Json

SEED = 1
FOLDER = "tests/integration/crd"
TESTS = [f"{FOLDER}/test_{name}.py" for name in ("creation", "change", "kubectl")]
PYTEST = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:testmon", "-k", "not explain", *TESTS]
MARK = "mutant"  # a field of the schema that has the number of the mutant in its name
LIMITS = (
    "minimum",
    "maximum",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "minProperties",
    "maxProperties",
)
TOKEN = re.compile(r"'[^']*'|&&|\|\||==|!=|<=|>=|<|>|!(?=[a-z(])|\b\d+\b|\.exists\(|\.all\(")
SWAPS = {
    **{"&&": "||", "||": "&&", "==": "!=", "!=": "==", "<=": "<", ">=": ">", "<": "<=", ">": ">="},
    **{"!": "", ".exists(": ".all(", ".all(": ".exists("},
}

Mutant = tuple[str, tuple[str | int, ...], Any]  # what changes, the path in the schema, the new value


def mutants(schema: Any, path: tuple[str | int, ...] = ()) -> Iterator[Mutant]:
    """Yield the mutants of a schema and of all schemas in it."""
    here = ".".join(str(part) for part in path if part not in ("properties", "x-kubernetes-validations"))
    for key in LIMITS:
        for step in (1, -1) if key in schema else ():
            yield f"{here}.{key}: {schema[key]} {step:+d}", (*path, key), schema[key] + step
    for key in ("enum", "required"):
        for value in schema.get(key, ()):
            rest = [other for other in schema[key] if other != value]
            yield f"{here}.{key}: without {value}", (*path, key), rest
    if "pattern" in schema:
        yield f"{here}.pattern: any", (*path, "pattern"), ""
    if "default" in schema:
        yield f"{here}.default: another", (*path, "default"), another(schema)
    for number, rule in enumerate(schema.get("x-kubernetes-validations", ())):
        place, text = (*path, "x-kubernetes-validations", number, "rule"), rule["rule"]
        yield f"{here}: never applies: {text}", place, "true"
        for match in TOKEN.finditer(text):
            changed = text[: match.start()] + swapped(match[0]) + text[match.end() :]
            around = f"{text[: match.start()][-30:]}[{match[0]}]{text[match.end() :][:30]}"
            yield f"{here}: {match[0]} -> {swapped(match[0])}: {around}", place, changed
    for name, inner in schema.get("properties", {}).items():
        yield from mutants(inner, (*path, "properties", name))
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            yield from mutants(schema[key], (*path, key))


def another(schema: Json) -> Any:
    """Return a default that the schema allows and that is not its own."""
    value = schema["default"]
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if "enum" in schema:
        return next(other for other in schema["enum"] if other != value)
    return {"auto": 1}.get(value, "/x") if isinstance(value, str) else None


def swapped(token: str) -> str:
    if token.startswith("'"):
        return f"'x{token[1:]}"
    return SWAPS[token] if token in SWAPS else str(int(token) + 1)


def install(direct: Direct, schema: Json, number: int) -> bool:
    """Replace the schema and wait until it is served; return False if the API server rejects it."""
    path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{CRD}"
    crd = direct.get(path)
    mark = f"{MARK}{number}"
    marked = schema | {"properties": schema["properties"] | {mark: {"type": "boolean"}}}
    crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"] = marked
    if direct.send("PUT", path, crd)[0] >= 300:
        return False
    deadline = time.monotonic() + 60
    probe = {"apiVersion": "dtj.dev/v1alpha1", "kind": "DistributedTrainingJob", mark: True}
    served = f"{JOBS.format('default')}?{STRICT}&dryRun=All"
    while mark in direct.send("POST", served, probe)[1]["message"]:
        if time.monotonic() > deadline:
            raise TimeoutError(f"the API server does not serve the schema with {mark}")
        time.sleep(0.1)  # between two requests
    return True


def run(plane: ControlPlane) -> bool:
    """Run the tests against the schema that is installed; return whether all pass."""
    said = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(said):
        patch.setattr(controlplane, "running", lambda folder: contextlib.nullcontext(plane))
        patch.setattr(controlplane, "install_crd", lambda plane: None)
        code = pytest.main(PYTEST)
    if code not in (0, 1):
        raise RuntimeError(f"pytest ended with {code}:\n{said.getvalue()}")
    if LOG is not None:
        LOG.write(said.getvalue())
    return code == 0


LOG: io.TextIOBase | None = None


def main(count: int, folder: Path) -> int:
    """Try `count` mutants; print those that survive, and the numbers."""
    began = time.monotonic()
    text = next(CRDS.glob("*.yaml")).read_text()
    # Through JSON, because anchors of YAML are one object in several places.
    crd = json.loads(json.dumps(yaml.safe_load(text)))
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    top = {"x-kubernetes-validations": schema["x-kubernetes-validations"], "required": schema["required"]}
    found = [*mutants(top), *mutants(schema["properties"]["spec"], ("properties", "spec"))]
    killed = tried = 0
    with controlplane.running(folder) as plane:
        controlplane.install_crd(plane)
        direct = Direct(plane)
        install(direct, schema, 0)
        if not run(plane):
            raise RuntimeError(f"the tests fail without any change, see {folder}/log")
        for number, mutant in enumerate(random.Random(SEED).sample(found, len(found)), start=1):
            if tried == count:
                break
            if not install(direct, changed(schema, mutant), number):
                continue  # the API server rejects it
            tried += 1
            if run(plane):
                print(f"survived: {mutant[0]}", flush=True)
            else:
                killed += 1
    seconds = time.monotonic() - began
    print(f"mutants of crd: {killed} of {tried} killed ({len(found)} possible, {seconds:.0f} s)")
    return int(tried != count)


def changed(schema: Json, mutant: Mutant) -> Json:
    """Return a copy of the schema with the mutant's change."""
    made = copy.deepcopy(schema)
    node: Any = made
    *parents, last = mutant[1]
    for part in parents:
        node = node[part]
    node[last] = mutant[2]
    return made


if __name__ == "__main__":
    with (Path(sys.argv[2]) / "log").open("w") as LOG:
        sys.exit(main(int(sys.argv[1]), Path(sys.argv[2])))
