"""Small jobs for the tables of CRD rules. The helpers return changes: dotted path below spec -> value."""

from __future__ import annotations

import copy
from typing import Any

from tests.support.kubectl import Json

ACCEPTED = ""
ABSENT = object()


def job(name: str = "digits", **changes: Any) -> Json:
    """Return the minimal job with these changes."""
    made: Json = {
        "apiVersion": "dtj.dev/v1alpha1",
        "kind": "DistributedTrainingJob",
        "metadata": {"name": name},
        "spec": {"template": {"spec": {"containers": [{"name": "trainer", "image": "trainer:1"}]}}},
    }
    for path, value in changes.items():
        put(made["spec"], path, value)
    return made


def put(spec: Json, path: str, value: Any) -> None:
    """Set the field at a dotted path; ABSENT removes it."""
    *parents, last = path.split(".")
    for parent in parents:
        spec = spec.setdefault(parent, {})
    if value is ABSENT:
        del spec[last]
    else:
        spec[last] = copy.deepcopy(value)


def pod(**fields: Any) -> Json:
    """Set fields of the pod template."""
    return {f"template.spec.{name}": value for name, value in fields.items()}


def env(*names: str) -> Json:
    """Set environment variables of the only container."""
    return pod(containers=[{"name": "trainer", "env": [{"name": name, "value": "x"} for name in names]}])


def recovery(**fields: Any) -> Json:
    """Set fields of spec.recovery."""
    return {f"recovery.{name}": value for name, value in fields.items()}


def rule(action: str = "Restart", **when: Any) -> Json:
    """Set one recovery rule."""
    return recovery(rules=[{"action": action, **when}])


def codes(*values: int, operator: str = "In") -> Json:
    """Set one recovery rule for exit codes."""
    return rule(onExitCodes={"operator": operator, "values": list(values)})


def checkpoint(volume: Any, **fields: Any) -> Json:
    """Set spec.checkpoint."""
    return {"checkpoint": {"volume": volume, **fields}}
