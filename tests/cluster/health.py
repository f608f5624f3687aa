"""Decides whether a cluster can be used. Pure; `kind` gathers the facts and acts on the result."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum


class Health(Enum):
    """The state of a cluster."""

    ABSENT = "there is none"
    GOOD = "it is ready"
    PAUSED = "some of its nodes are paused"
    DEAD = "some of its nodes are not running"
    OUTDATED = "it was created by another version of this checkout"
    UNREADY = "its API server or some of its nodes are not ready"


@dataclass(frozen=True, kw_only=True)
class Observed:
    """What is known about a cluster from outside.

    containers  state of each node's container, in the engine's words
    answering   nodes in whose container a command can be run
    ready       nodes that the API server reports as ready; empty if it does not answer
    key         the cluster key in the nodes' label; None if the API server does not answer
    """

    containers: Mapping[str, str]
    answering: frozenset[str] = frozenset()
    ready: frozenset[str] = frozenset()
    key: str | None = None


def judge(seen: Observed, *, expected: frozenset[str], key: str) -> Health:
    """Decide the state of a cluster. The order matters: if a node is dead, nothing else counts."""
    if not seen.containers:
        return Health.ABSENT
    states = {name: seen.containers.get(name, "missing") for name in expected}
    if any(state == "paused" for state in states.values()) and set(states.values()) <= {"running", "paused"}:
        return Health.PAUSED
    # The engine still reports "running" if another program killed the container's processes.
    if set(states.values()) != {"running"} or not expected <= seen.answering:
        return Health.DEAD
    if seen.key is not None and seen.key != key:
        return Health.OUTDATED
    return Health.GOOD if expected <= seen.ready else Health.UNREADY
