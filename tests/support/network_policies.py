"""Answers whether NetworkPolicies let a pod connect to another one, as a cluster that enforces them would."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]


@dataclass(frozen=True)
class Pod:
    """One end of a connection; `ports` are the names of its container ports."""

    namespace: str
    labels: Mapping[str, str] = field(default_factory=dict)
    ports: Mapping[str, int] = field(default_factory=dict)


def allowed(policies: Iterable[Json], source: Pod, target: Pod, port: int) -> bool:
    """Whether `source` may connect to this TCP port of `target`."""
    policies = list(policies)
    leaves = _permits(policies, "Egress", "to", source, target, target, port)
    return leaves and _permits(policies, "Ingress", "from", target, source, target, port)


def _permits(
    policies: list[Json], direction: str, side: str, subject: Pod, other: Pod, target: Pod, port: int
) -> bool:
    """Whether one direction is permitted: policies that select a pod forbid what none of them allows."""
    selecting = [
        policy
        for policy in policies
        if policy["metadata"]["namespace"] == subject.namespace
        and direction in policy["spec"]["policyTypes"]
        and _selects(policy["spec"]["podSelector"], subject.labels)
    ]
    rules = [rule for policy in selecting for rule in policy["spec"].get(direction.lower()) or ()]
    return not selecting or any(
        _has_port(rule.get("ports"), target, port) and _has_peer(rule.get(side), other, subject.namespace)
        for rule in rules
    )


def _has_port(ports: list[Json] | None, target: Pod, port: int) -> bool:
    numbers = [target.ports.get(each["port"], each["port"]) for each in ports or ()]
    return not ports or port in numbers


def _has_peer(peers: list[Json] | None, pod: Pod, home: str) -> bool:
    """Whether the pod is one of the peers; `home` is the namespace of the policy."""
    return not peers or any(_is(peer, pod, home) for peer in peers)


def _is(peer: Json, pod: Pod, home: str) -> bool:
    if "ipBlock" in peer:
        raise NotImplementedError("addresses of pods are not known here")
    of_namespace = peer.get("namespaceSelector")
    near = pod.namespace == home if of_namespace is None else _selects(of_namespace, _names(pod.namespace))
    return near and _selects(peer.get("podSelector") or {}, pod.labels)


def _names(namespace: str) -> Json:
    return {"kubernetes.io/metadata.name": namespace}


def _selects(selector: Json, labels: Mapping[str, str]) -> bool:
    if unknown := selector.keys() - {"matchLabels"}:
        raise NotImplementedError(f"no policy of ours has {unknown}")
    return (selector.get("matchLabels") or {}).items() <= labels.items()
