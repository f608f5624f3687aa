"""A pod of a job: the user's template first, what the operator owns, safe defaults where it is silent.

The template passes through untouched otherwise, fields that this code has never heard of included.
"""

import copy
from collections.abc import Sequence
from typing import Any

from dtj_operator import names, quantity
from dtj_operator.plan.children.env import Place, environment
from dtj_operator.plan.children.meta import metadata
from dtj_operator.spec import Job

Json = dict[str, Any]

SHM_PER_PROCESS = 2 * 1024**3  # bytes; a cap, not a reservation: DataLoader workers pass batches through it
TRAINER_GROUP = 65532  # of the trainer image: a volume is writable for it


def pod(job: Job, place: Place, avoid: Sequence[str] = ()) -> Json:
    """The pod of one replica, ready to be posted.

    avoid   names of nodes that it must not be placed on
    """
    template = copy.deepcopy(job.template)
    given = template.get("metadata") or {}
    meta = metadata(job, names.pod_name(job.name, place.index))
    ours = {**meta["labels"], names.REPLICA_INDEX: str(place.index), names.ATTEMPT: str(place.attempt)}
    meta["labels"] = {**(given.get("labels") or {}), **ours}
    if given.get("annotations"):
        meta["annotations"] = given["annotations"]
    spec = template["spec"]
    spec |= {"hostname": meta["name"], "subdomain": job.name, "restartPolicy": "Never"}
    trainer = next(c for c in spec["containers"] if c["name"] == job.trainer)
    trainer["env"] = environment(job, trainer, place)
    trainer.setdefault("terminationMessagePolicy", "FallbackToLogsOnError")
    _mount_shm(job, spec, trainer)
    _mount_checkpoints(job, spec, trainer)
    if spec.get("hostNetwork"):
        # By default the node's resolver is asked, which knows no Service, and so not where replica 0 is.
        spec.setdefault("dnsPolicy", "ClusterFirstWithHostNet")
    _harden(spec)
    _keep_away(spec, avoid)
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}


def _mount_shm(job: Job, spec: Json, trainer: Json) -> None:
    """The runtime's 64 MiB kill DataLoader workers.

    Its size is half the container's memory limit, or 2 GiB a process where there is none.
    """
    if any(str(m.get("mountPath", "")).rstrip("/") == "/dev/shm" for m in trainer.get("volumeMounts") or ()):
        return
    limit = ((trainer.get("resources") or {}).get("limits") or {}).get("memory")
    memory = quantity.parse(limit) if limit is not None else None
    size = int(memory) // 2 if memory else SHM_PER_PROCESS * job.processes
    volume = {"emptyDir": {"medium": "Memory", "sizeLimit": str(size)}}
    _mount(spec, trainer, names.SHM_VOLUME, "/dev/shm", volume)


def _mount_checkpoints(job: Job, spec: Json, trainer: Json) -> None:
    if job.checkpoint is not None:
        _mount(spec, trainer, names.CHECKPOINT_VOLUME, job.checkpoint.mount_path, job.checkpoint.volume)


def _mount(spec: Json, container: Json, name: str, path: str, source: Json) -> None:
    spec["volumes"] = [*(spec.get("volumes") or ()), {"name": name, **source}]
    container["volumeMounts"] = [*(container.get("volumeMounts") or ()), {"name": name, "mountPath": path}]


def _keep_away(spec: Json, nodes: Sequence[str]) -> None:
    """ANDed into each of the user's terms, for a node that matches any one term is taken."""
    if not nodes:
        return
    # The API takes one name per requirement.
    away = [{"key": "metadata.name", "operator": "NotIn", "values": [node]} for node in nodes]
    affinity = spec["affinity"] = spec.get("affinity") or {}
    of_nodes = affinity["nodeAffinity"] = affinity.get("nodeAffinity") or {}
    required = of_nodes.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    given = [t for t in required.get("nodeSelectorTerms") or () if t]  # an empty term matches no node
    terms = [{**t, "matchFields": [*(t.get("matchFields") or ()), *away]} for t in given]
    of_nodes["requiredDuringSchedulingIgnoredDuringExecution"] = {
        **required,
        "nodeSelectorTerms": terms or [{"matchFields": away}],
    }


def _harden(spec: Json) -> None:
    """Only absent fields: whoever writes one down means it."""
    containers = [*(spec.get("initContainers") or ()), *spec["containers"]]
    if not spec.get("serviceAccountName"):  # who names an account wants its token
        spec.setdefault("automountServiceAccountToken", False)
    spec.setdefault("enableServiceLinks", False)
    security = spec["securityContext"] = spec.get("securityContext") or {}
    security.setdefault("seccompProfile", {"type": "RuntimeDefault"})
    if "fsGroup" not in security:
        security["fsGroup"] = TRAINER_GROUP
        # else the kubelet walks every file of a large checkpoint volume before each start
        security.setdefault("fsGroupChangePolicy", "OnRootMismatch")
    users = [
        security.get("runAsUser"),
        *((c.get("securityContext") or {}).get("runAsUser") for c in containers),
    ]
    if 0 not in users:
        security.setdefault("runAsNonRoot", True)
    for container in containers:
        _harden_container(container)


def _harden_container(container: Json) -> None:
    security = container["securityContext"] = container.get("securityContext") or {}
    capabilities = security["capabilities"] = security.get("capabilities") or {}
    admin = "SYS_ADMIN" in (capabilities.get("add") or ()) or "CAP_SYS_ADMIN" in (
        capabilities.get("add") or ()
    )
    if security.get("privileged") or admin:  # the API server refuses these together with no escalation
        return
    security.setdefault("allowPrivilegeEscalation", False)
    capabilities.setdefault("drop", ["ALL"])
