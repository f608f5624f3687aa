"""Checks whether the user can train on this cluster; each finding is a line, and says how to fix it."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from dtj_client.errors import ClientError
from dtj_client.kubectl import GROUP, KIND, VERSION, Json, Kubectl
from dtj_client.manifest import GPU

NEEDED = (
    *(("create", KIND), ("get", KIND), ("list", KIND), ("patch", KIND), ("delete", KIND)),
    *(("list", "pods"), ("get", "pods/log"), ("create", "configmaps"), ("list", "events.events.k8s.io")),
)
_PODS = "kubectl get pods -A -l app.kubernetes.io/name=dtj-operator"


class Result(StrEnum):
    """What a check found; `UNKNOWN`: the user may not see it."""

    GOOD = "ok"
    BAD = "BAD"
    UNKNOWN = "?"


@dataclass(frozen=True)
class Finding:
    """One line.

    fix   what to do about it; empty if there is nothing to do
    """

    result: Result
    text: str
    fix: str = ""

    def __str__(self) -> str:
        return f"{self.result:3}  {self.text}" + (f"\n     fix: {self.fix}" if self.fix else "")


def examine(kubectl: Kubectl) -> Iterator[Finding]:
    """Yield the findings; only the first one if the cluster cannot be reached."""
    try:
        context = kubectl.run("config", "current-context").strip()
        served = _api_groups(kubectl)
    except ClientError as error:
        yield Finding(Result.BAD, f"cluster: {error.message}", error.fix)
        return
    yield Finding(Result.GOOD, f"cluster: context {context}")
    yield _kind(served)
    checks: tuple[Callable[[Kubectl], Finding], ...] = (_rights, _operator, _gpus, _pod_security, _quotas)
    for check in checks:
        try:
            yield check(kubectl)
        except ClientError as error:
            yield Finding(Result.UNKNOWN, f"{check.__name__.strip('_').replace('_', ' ')}: {error.message}")
    if "kueue.x-k8s.io" in served:
        yield _queues(kubectl)
    else:
        yield Finding(Result.GOOD, "queues: none, this cluster has no Kueue")


def _api_groups(kubectl: Kubectl) -> dict[str, list[str]]:
    """The versions of each group of APIs that the server has."""
    groups = json.loads(kubectl.run("get", "--raw", "/apis"))["groups"]
    return {group["name"]: [each["version"] for each in group["versions"]] for group in groups}


def _kind(served: dict[str, list[str]]) -> Finding:
    versions = served.get(GROUP, [])
    if VERSION in versions:
        return Finding(Result.GOOD, f"API: {GROUP}/{VERSION}")
    if versions:
        text = f"API: the cluster has {GROUP}/{', '.join(versions)}, this client writes {VERSION}"
        return Finding(Result.BAD, text, "install the client of the operator's version")
    return Finding(Result.BAD, f"API: the cluster has no {GROUP}", "install the operator with its chart")


def _rights(kubectl: Kubectl) -> Finding:
    missing = [f"{verb} {kind}" for verb, kind in NEEDED if not kubectl.may(verb, kind)]
    if missing:
        fix = "ask for the role edit in this namespace"
        return Finding(Result.BAD, f"rights: you may not {', '.join(missing)}", fix)
    return Finding(Result.GOOD, "rights: submit, follow and delete jobs")


def _operator(kubectl: Kubectl) -> Finding:
    label = "app.kubernetes.io/name=dtj-operator"
    words = ("get", "deployments", "-A", "-l", label, "-o", "json")
    found: list[Json] = json.loads(kubectl.run(*words))["items"]
    if not found:
        return Finding(Result.BAD, "operator: there is none", "install the operator with its chart")
    ready = sum((each.get("status") or {}).get("readyReplicas", 0) for each in found)
    place = found[0]["metadata"]["namespace"]
    if not ready:
        return Finding(Result.BAD, f"operator: no pod is ready in namespace {place}", f"see {_PODS}")
    return Finding(Result.GOOD, f"operator: {ready} pods are ready in namespace {place}")


def _gpus(kubectl: Kubectl) -> Finding:
    nodes: list[Json] = json.loads(kubectl.run("get", "nodes", "-o", "json"))["items"]
    counts = [int((node.get("status") or {}).get("allocatable", {}).get(GPU, 0)) for node in nodes]
    having = sum(1 for count in counts if count)
    if not having:
        return Finding(Result.GOOD, f"gpus: none, {len(nodes)} nodes with CPUs only")
    return Finding(Result.GOOD, f"gpus: {sum(counts)} on {having} of {len(nodes)} nodes")


def _pod_security(kubectl: Kubectl) -> Finding:
    namespace = kubectl.namespace()
    found = json.loads(kubectl.run("get", "namespace", namespace, "-o", "json"))
    level = (found["metadata"].get("labels") or {}).get("pod-security.kubernetes.io/enforce", "privileged")
    return Finding(Result.GOOD, f"pod security: namespace {namespace} enforces {level}")


def _quotas(kubectl: Kubectl) -> Finding:
    found: list[Json] = json.loads(kubectl.run("get", "resourcequotas", "-o", "json"))["items"]
    full = [
        f"{resource} of {each['metadata']['name']} ({limit})"
        for each in found
        for resource, limit in ((each.get("status") or {}).get("hard") or {}).items()
        if (each["status"].get("used") or {}).get(resource) == limit
    ]
    if full:
        fix = "wait until other jobs have finished, or ask for a larger quota"
        return Finding(Result.BAD, f"quotas: used up: {', '.join(full)}", fix)
    return Finding(Result.GOOD, f"quotas: {len(found)} in this namespace, none is used up")


def _queues(kubectl: Kubectl) -> Finding:
    try:
        lines = kubectl.run("get", "localqueues.kueue.x-k8s.io", "-o", "name").split()
    except ClientError as error:
        return Finding(Result.UNKNOWN, f"queues: {error.message}")
    names = [line.partition("/")[2] for line in lines]
    if not names:
        return Finding(Result.GOOD, "queues: none in this namespace, so its jobs start at once")
    return Finding(Result.GOOD, f"queues: {', '.join(names)}")
