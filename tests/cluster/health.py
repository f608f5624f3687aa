"""Whether a cluster is still good for anything. Pure; `kind` gathers the facts and acts on the verdict."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum


class Health(Enum):
    """What is to be done about a cluster."""

    ABSENT = "there is none"
    GOOD = "it is ready"
    PAUSED = "some of its nodes are paused"
    DEAD = "some of its nodes do not run"
    OUTDATED = "it was made by another version of this checkout"
    UNREADY = "its API server or some of its nodes are not ready"


@dataclass(frozen=True, kw_only=True)
class Observed:
    """What can be seen of a cluster from outside.

    containers  state of each node's container, as the engine names it
    answering   nodes in whose container a command can be run
    ready       nodes that the API server calls ready; empty where it does not answer
    key         what the cluster was made of, by its node's label; None where the API server does not answer
    """

    containers: Mapping[str, str]
    answering: frozenset[str] = frozenset()
    ready: frozenset[str] = frozenset()
    key: str | None = None


def judge(seen: Observed, *, expected: frozenset[str], key: str) -> Health:
    """Decide what a cluster is good for. The order matters: a dead node makes all other questions moot."""
    if not seen.containers:
        return Health.ABSENT
    states = {name: seen.containers.get(name, "missing") for name in expected}
    if any(state == "paused" for state in states.values()) and set(states.values()) <= {"running", "paused"}:
        return Health.PAUSED
    # Where somebody killed a container's processes behind the engine's back, it still says "running".
    if set(states.values()) != {"running"} or not expected <= seen.answering:
        return Health.DEAD
    if seen.key is not None and seen.key != key:
        return Health.OUTDATED
    return Health.GOOD if expected <= seen.ready else Health.UNREADY
