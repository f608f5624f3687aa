"""The pods of a job: the user's template, the fields that the operator owns, and safe defaults for others.

Everything else of the template passes through unchanged, including fields that this code does not know.
"""

import copy
from collections.abc import Callable, Sequence
from functools import partial

from dtj_operator.model import names, quantity
from dtj_operator.model.json import Json
from dtj_operator.model.spec import Job, Topology
from dtj_operator.model.views import PodSettings
from dtj_operator.plan.children.env import PodContext, of_replica, shared
from dtj_operator.plan.children.meta import metadata

SHM_PER_PROCESS = 2 * 1024**3  # bytes; a limit, not a reservation: DataLoader workers pass batches through it
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
TRAINER_GROUP = 65532  # of the trainer image; makes the checkpoint volume writable for it


def pod_maker(
    job: Job,
    context: PodContext,
    *,
    avoid: Sequence[str] = (),
    avoid_if_possible: Sequence[str] = (),
    pod_group: str | None = None,
    admitted: PodSettings | None = None,
    awaits_node: bool = False,
) -> Callable[[int], Json]:
    """Return how to make the pod of a replica, ready for the API server; pods share what does not differ.

    avoid              names of nodes that they must not run on
    avoid_if_possible  names of nodes that they should not run on
    pod_group          name of the PodGroup with which they are scheduled
    admitted           what the admission by the job's queue adds
    awaits_node        Kueue chooses their nodes: the scheduler leaves them alone until then
    """
    template = copy.deepcopy(job.template)
    given, spec = template.get("metadata") or {}, template["spec"]
    meta = metadata(job, job.name)
    meta["labels"] = {
        **(given.get("labels") or {}),
        **meta["labels"],
        names.ATTEMPT: str(context.attempt),
        **({names.AVOIDS_NODES: "true"} if avoid else {}),
    }
    annotations = given.get("annotations") or {}
    if len(spec["containers"]) > 1:  # else `kubectl logs` shows whichever comes first
        annotations = {names.DEFAULT_CONTAINER: job.trainer, **annotations}
    if annotations:
        meta["annotations"] = annotations
    spec |= {"subdomain": job.name, "restartPolicy": "Never"}
    trainer = next(c for c in spec["containers"] if c["name"] == job.trainer)
    trainer["env"] = shared(job, trainer, context)
    for container in (trainer, *(spec.get("initContainers") or ())):  # a failure shows the end of its log
        container.setdefault("terminationMessagePolicy", "FallbackToLogsOnError")
    _mount_shm(job, spec, trainer)
    _mount_checkpoints(job, spec, trainer)
    if spec.get("hostNetwork"):
        # The default is the node's resolver, which does not know Services, so not the name of replica 0.
        spec.setdefault("dnsPolicy", "ClusterFirstWithHostNet")
    _harden(spec)
    _avoid_nodes(spec, avoid)
    _prefer_other_nodes(spec, avoid_if_possible)
    if job.topology is not None:
        _place_in_one_domain(spec, job, job.topology)
    if admitted is not None:
        _follow_admission(meta, spec, admitted)
    if awaits_node:
        _append(spec, "schedulingGates", {"name": names.TOPOLOGY_GATE})
    if pod_group is not None:
        spec["schedulingGroup"] = {"podGroupName": pod_group}
    return partial(_of_replica, job, meta, spec, trainer)


def _of_replica(job: Job, meta: Json, spec: Json, trainer: Json, index: int) -> Json:
    """The pod; a container with the name of the trainer's is left to the API server, which refuses it."""
    name = names.pod_name(job.name, index)
    labels = {**meta["labels"], names.REPLICA_INDEX: str(index)}
    containers = [
        {**c, "env": of_replica(job, index) + c["env"]} if c is trainer else c for c in spec["containers"]
    ]
    if index == 0 and spec.get("hostNetwork"):
        _declare_port(job, containers)
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {**meta, "name": name, "labels": labels},
        "spec": {**spec, "hostname": name, "containers": containers},
    }


def _declare_port(job: Job, containers: list[Json]) -> None:
    """Declare where replica 0 waits for the others: the scheduler gives no two pods one port of a node.

    Otherwise the ranks of another job, whose replica 0 is on the same node, could join this one.
    """
    declared = (port.get("containerPort") for c in containers for port in c.get("ports") or ())
    if job.master_port not in declared:
        _append(
            next(c for c in containers if c["name"] == job.trainer),
            "ports",
            {"containerPort": job.master_port},
        )


def _mount_shm(job: Job, spec: Json, trainer: Json) -> None:
    """Mount /dev/shm, because the runtime's default of 64 MiB is too small for DataLoader workers.

    The size is half the container's memory limit, or 2 GiB per process without a limit.
    """
    if any(str(m.get("mountPath", "")).rstrip("/") == "/dev/shm" for m in trainer.get("volumeMounts") or ()):
        return
    memory = quantity.parse(((trainer.get("resources") or {}).get("limits") or {}).get("memory"))
    size = int(memory) // 2 if memory else SHM_PER_PROCESS * job.processes
    volume = {"emptyDir": {"medium": "Memory", "sizeLimit": str(size)}}
    _mount(spec, trainer, names.SHM_VOLUME, "/dev/shm", volume)


def _mount_checkpoints(job: Job, spec: Json, trainer: Json) -> None:
    if job.checkpoint is None:
        return
    volume = {field: value for field, value in job.checkpoint.volume.items() if field != "name"}
    _mount(spec, trainer, names.CHECKPOINT_VOLUME, job.checkpoint.mount_path, volume)
    security = _part(spec, "securityContext")
    if job.checkpoint.fs_group_policy == "Trainer" and "fsGroup" not in security:
        security["fsGroup"] = TRAINER_GROUP
        # Otherwise the kubelet walks every file of a large volume before each start.
        security.setdefault("fsGroupChangePolicy", "OnRootMismatch")


def _mount(spec: Json, container: Json, name: str, path: str, source: Json) -> None:
    _append(spec, "volumes", {"name": name, **source})
    _append(container, "volumeMounts", {"name": name, "mountPath": path})


def _avoid_nodes(spec: Json, nodes: Sequence[str]) -> None:
    """ANDed into each of the user's terms, because a node that matches any single term is accepted."""
    if not nodes:
        return
    away = _away_from(nodes)
    required = _part(_part(_part(spec, "affinity"), "nodeAffinity"), _REQUIRED)
    given = [t for t in required.get("nodeSelectorTerms") or () if t]  # an empty term matches no node
    terms = [{**t, "matchFields": [*(t.get("matchFields") or ()), *away]} for t in given]
    required["nodeSelectorTerms"] = terms or [{"matchFields": away}]


def _prefer_other_nodes(spec: Json, nodes: Sequence[str]) -> None:
    if not nodes:
        return
    ours = {"weight": 100, "preference": {"matchFields": _away_from(nodes)}}
    _append(_part(_part(spec, "affinity"), "nodeAffinity"), _PREFERRED, ours)


def _away_from(nodes: Sequence[str]) -> list[Json]:
    """The API accepts one name per requirement."""
    return [{"key": "metadata.name", "operator": "NotIn", "values": [node]} for node in nodes]


def _place_in_one_domain(spec: Json, job: Job, topology: Topology) -> None:
    """Near the job's other pods; the scheduler lets the first pod choose the domain."""
    affinity = _part(spec, "affinity")
    selector = {"matchLabels": names.child_labels(job.name, job.uid)}
    term: Json = {"labelSelector": selector, "topologyKey": topology.key}
    if topology.required:
        _append(_part(affinity, "podAffinity"), _REQUIRED, term)
    else:
        _append(_part(affinity, "podAffinity"), _PREFERRED, {"weight": 100, "podAffinityTerm": term})
    if topology.exclusive:
        _keep_domain_for(affinity, job, topology)


def _keep_domain_for(affinity: Json, job: Job, topology: Topology) -> None:
    """Away from the pods of all other jobs; the scheduler then keeps those away from these pods too."""
    others = [
        {"key": names.JOB_UID, "operator": "Exists"},
        {"key": names.JOB_UID, "operator": "NotIn", "values": [job.uid]},
    ]
    term: Json = {
        "labelSelector": {"matchExpressions": others},
        "namespaceSelector": {},  # all namespaces
        "topologyKey": topology.key,
    }
    _append(_part(affinity, "podAntiAffinity"), _REQUIRED, term)


def _follow_admission(meta: Json, spec: Json, admitted: PodSettings) -> None:
    """The template's node selector and tolerations stay: Kueue chose flavors to which they apply."""
    meta["labels"] = {**admitted.labels, **meta["labels"]}
    meta["annotations"] = {**(meta.get("annotations") or {}), **admitted.annotations}
    spec["nodeSelector"] = {**(spec.get("nodeSelector") or {}), **admitted.node_selector}
    given = spec.get("tolerations") or []
    spec["tolerations"] = [*given, *(each for each in admitted.tolerations if each not in given)]


def _harden(spec: Json) -> None:
    """Set absent fields only: a field that the user sets is kept."""
    containers = [*(spec.get("initContainers") or ()), *spec["containers"]]
    if not (spec.get("serviceAccountName") or spec.get("serviceAccount")):  # a named one is meant to be used
        spec.setdefault("automountServiceAccountToken", False)
    spec.setdefault("enableServiceLinks", False)
    security = _part(spec, "securityContext")
    security.setdefault("seccompProfile", {"type": "RuntimeDefault"})
    users = [
        security.get("runAsUser"),
        *((c.get("securityContext") or {}).get("runAsUser") for c in containers),
    ]
    if 0 not in users:
        security.setdefault("runAsNonRoot", True)
    for container in containers:
        _harden_container(container)


def _harden_container(container: Json) -> None:
    security = _part(container, "securityContext")
    capabilities = _part(security, "capabilities")
    added = capabilities.get("add") or ()
    if security.get("privileged") or "SYS_ADMIN" in added or "CAP_SYS_ADMIN" in added:
        return  # the API server rejects allowPrivilegeEscalation: false for these
    security.setdefault("allowPrivilegeEscalation", False)
    capabilities.setdefault("drop", ["ALL"])


def _part(of: Json, name: str) -> Json:
    """The object in this field, which is created if it is absent or null."""
    found: Json = of.get(name) or {}
    of[name] = found
    return found


def _append(of: Json, name: str, item: Json) -> None:
    """Append to the list in this field, which may be absent or null."""
    of[name] = [*(of.get(name) or ()), item]
