"""Checks whether the user can train on this cluster; each finding is a line, and says how to fix it."""

import json
import re
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from dtj_client.amounts import accelerators, number
from dtj_client.errors import ClientError
from dtj_client.kube.kubectl import GROUP, KIND, VERSION, Json, Kubectl
from dtj_client.show.report import OPERATOR, condition

NEEDED = (
    *(("create", KIND), ("get", KIND), ("list", KIND), ("patch", KIND), ("delete", KIND)),
    *(("list", "pods"), ("get", "pods/log"), ("create", "configmaps")),
)
TRY = "kubectl dtj doctor --try starts a short job, which finds it out"
TRIED = {"shared memory", "name resolution"}
# Groups of APIs that come with network plugins which enforce NetworkPolicies.
ENFORCING = {"cilium.io": "Cilium", "crd.projectcalico.org": "Calico", "crd.antrea.io": "Antrea"}
# Of the names in a quota, those that count what a job or its submission needs.
_OF_JOBS = re.compile(
    r"(count/)?(pods|services|configmaps)|count/networkpolicies\.networking\.k8s\.io"
    r"|count/distributedtrainingjobs\.dtj\.dev|((requests|limits)\.)?(cpu|memory|ephemeral-storage)"
    r"|requests\.[^/]+/.+"
)
_EXTENDED = re.compile(r"requests\.[^/]+/")  # such as requests.nvidia.com/gpu


class Result(StrEnum):
    """What a check found; `UNKNOWN`: the user may not see it, or the API does not say it."""

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


def examine(kubectl: Kubectl) -> Generator[Finding, None, None]:
    """Yield the findings; only the first one if the cluster cannot be reached."""
    try:
        served = _api_groups(kubectl)
    except ClientError as error:
        yield Finding(Result.BAD, f"cluster: {error.message}", error.fix)
        return
    context = kubectl.context()  # a pod has none, and uses its service account
    yield Finding(Result.GOOD, f"cluster: {f'context {context}' if context else 'the one of this pod'}")
    kind = _kind(served)
    yield kind
    for title, check in CHECKS:
        if title == "rights" and kind.result is Result.BAD:
            yield Finding(
                Result.UNKNOWN, "rights: the role edit gets those on jobs with the operator's chart"
            )
            continue
        try:
            yield check(kubectl)
        except ClientError as error:
            fix = TRY if title in TRIED else ""
            yield Finding(Result.UNKNOWN, f"{title}: {error.message}", fix)
    yield _network_policies(served)
    if "kueue.x-k8s.io" in served:
        yield from _queues(kubectl)
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
    if not kubectl.may("list", "events"):
        text = "rights: submit, follow and delete jobs; without list events, nothing shows what kubelets say"
        return Finding(Result.UNKNOWN, text)
    return Finding(Result.GOOD, "rights: submit, follow and delete jobs")


def _operator(kubectl: Kubectl) -> Finding:
    label = "app.kubernetes.io/name=dtj-operator"
    found = kubectl.items("deployments", "-A", "-l", label)
    if not found:
        return Finding(Result.BAD, "operator: there is none", "install the operator with its chart")
    ready = sum((each.get("status") or {}).get("readyReplicas", 0) for each in found)
    place = found[0]["metadata"]["namespace"]
    if not ready:
        return Finding(Result.BAD, f"operator: no pod is ready in namespace {place}", f"see {OPERATOR}")
    return Finding(Result.GOOD, f"operator: {ready} pods are ready in namespace {place}")


def _gpus(kubectl: Kubectl) -> Finding:
    nodes = kubectl.items("nodes")
    counts: dict[str, list[int]] = {}
    for node in nodes:
        allocatable = (node.get("status") or {}).get("allocatable", {})
        for name, amount in accelerators(allocatable).items():
            count = int(number(str(amount)) or 0)
            counts.setdefault(name, []).extend([count] if count else [])
    found = [
        f"{sum(each)} {name} on {len(each)} of {len(nodes)} nodes" for name, each in counts.items() if each
    ]
    if not found:
        return Finding(Result.GOOD, f"gpus: none, {len(nodes)} nodes with CPUs only")
    return Finding(Result.GOOD, f"gpus: {', '.join(found)}")


def _pod_security(kubectl: Kubectl) -> Finding:
    namespace = kubectl.namespace()
    found = json.loads(kubectl.run("get", "namespace", namespace, "-o", "json"))
    level = (found["metadata"].get("labels") or {}).get("pod-security.kubernetes.io/enforce", "privileged")
    return Finding(Result.GOOD, f"pod security: namespace {namespace} enforces {level}")


def _quotas(kubectl: Kubectl) -> Finding:
    """What is used up of that which jobs need; GPUs, and quotas with scopes, are about some pods only."""
    found = kubectl.items("resourcequotas")
    full: dict[bool, list[str]] = {True: [], False: []}
    for each in found:
        status, spec = each.get("status") or {}, each.get("spec") or {}
        for resource, limit in (status.get("hard") or {}).items():
            used_up = limit != "0" and (status.get("used") or {}).get(resource) == limit
            if used_up and _OF_JOBS.fullmatch(resource):
                is_for_all = not (
                    spec.get("scopes") or spec.get("scopeSelector") or _EXTENDED.match(resource)
                )
                full[is_for_all].append(f"{resource} of {each['metadata']['name']} ({limit})")
    fix = "wait until other jobs have finished, or ask for a larger quota"
    if full[True]:
        return Finding(Result.BAD, f"quotas: used up: {', '.join(full[True])}", fix)
    if full[False]:
        said = f"quotas: used up for some pods: {', '.join(full[False])}"
        return Finding(Result.UNKNOWN, said, fix)
    return Finding(Result.GOOD, f"quotas: {len(found)} in this namespace, none is used up")


def _shared_memory(kubectl: Kubectl) -> Finding:
    """What the operator mounts counts towards the container's memory, which the namespace may limit."""
    limits = [
        f"{limit['default']['memory']} (limit range {each['metadata']['name']})"
        for each in kubectl.items("limitranges")
        for limit in each["spec"].get("limits") or ()
        if limit.get("type") == "Container" and "memory" in (limit.get("default") or {})
    ]
    if limits:
        fix = "set the memory limit of the container (resources.limits.memory); half of it is /dev/shm"
        text = f"shared memory: without a limit of its own a container gets {', '.join(limits)}"
        return Finding(Result.UNKNOWN, f"{text}, towards which /dev/shm counts", fix)
    text = "shared memory: jobs get half their memory limit at /dev/shm, without a limit 2 GiB a process"
    return Finding(Result.GOOD, text)


def _outgoing(kubectl: Kubectl) -> Finding:
    """A policy for all pods may deny what those of a job need; others may allow it: a hint only."""
    restricting = [
        each["metadata"]["name"]
        for each in kubectl.items("networkpolicies")
        if "Egress" in (each["spec"].get("policyTypes") or ()) and not each["spec"].get("podSelector")
    ]
    if restricting:
        text = f"outgoing connections: {', '.join(restricting)} restricts those of all pods in this namespace"
        fix = "allow the pods of a job DNS and each other: docs/security.md#network has the policy"
        return Finding(Result.UNKNOWN, text, fix)
    return Finding(Result.GOOD, "outgoing connections: no NetworkPolicy of this namespace restricts all pods")


def _name_resolution(kubectl: Kubectl) -> Finding:
    """Whether a pod of the cluster's DNS is ready, under the name that nearly all clusters give it."""
    label = "kubernetes.io/service-name=kube-dns"
    slices = kubectl.elsewhere("kube-system").items("endpointslices", "-l", label)
    if not slices:
        return Finding(Result.UNKNOWN, "name resolution: no Service kube-dns in kube-system", TRY)
    ends = [end for each in slices for end in each.get("endpoints") or ()]
    ready = sum((end.get("conditions") or {}).get("ready") is not False for end in ends)
    if not ready:
        fix = "ask an administrator: kubectl get pods -n kube-system -l k8s-app=kube-dns"
        return Finding(Result.BAD, "name resolution: no pod of kube-dns is ready", fix)
    return Finding(Result.GOOD, f"name resolution: {ready} pods of kube-dns are ready")


def _network_policies(served: Mapping[str, object]) -> Finding:
    """The API cannot say it; but some network plugins that enforce them have an API of their own."""
    for group, plugin in ENFORCING.items():
        if group in served:
            return Finding(Result.GOOD, f"network policies: {plugin} is installed, which enforces them")
    text = "network policies: the API does not say whether the network plugin enforces them"
    return Finding(Result.UNKNOWN, text, TRY)


def _queues(kubectl: Kubectl) -> Iterator[Finding]:
    try:
        found = kubectl.items("localqueues.kueue.x-k8s.io")
    except ClientError as error:
        yield Finding(Result.UNKNOWN, f"queues: {error.message}")
        return
    if not found:
        yield Finding(Result.GOOD, "queues: none in this namespace, so its jobs start at once")
    for each in found:
        yield _queue(each["metadata"]["name"], each.get("status") or {})


def _queue(name: str, status: Json) -> Finding:
    """Whether a queue admits jobs, and how many wait."""
    active = condition(status, "Active")
    if active.get("status") == "False":
        text = f"queues: {name} admits no job: {active.get('message') or active.get('reason')}"
        return Finding(Result.BAD, text, "choose another queue with --queue, or ask an administrator")
    counts = f"{status.get('admittedWorkloads', 0)} admitted, {status.get('pendingWorkloads', 0)} waiting"
    return Finding(Result.GOOD, f"queues: {name}: {counts}")


CHECKS: tuple[tuple[str, Callable[[Kubectl], Finding]], ...] = (
    ("rights", _rights),
    ("operator", _operator),
    ("gpus", _gpus),
    ("pod security", _pod_security),
    ("quotas", _quotas),
    ("shared memory", _shared_memory),
    ("name resolution", _name_resolution),
    ("outgoing connections", _outgoing),
)
