"""The environment of the training container, as specified in docs/contract.md.

The operator's variables come first, so that the user's variables can refer to them: $(DTJ_REPLICA_INDEX).
"""

import math
import posixpath
from collections.abc import Iterator
from dataclasses import dataclass, field

from dtj_operator.model import names, quantity
from dtj_operator.model.json import Json
from dtj_operator.model.memory import Restarts
from dtj_operator.model.spec import Job


@dataclass(frozen=True, kw_only=True)
class PodContext:
    """What the new pods have to know about their job and attempt."""

    attempt: int
    size: int  # replicas of the attempt; an elastic job's agents learn of later changes from each other
    restarts_left: int
    restarts: Restarts = field(default_factory=Restarts)  # so far: the agents continue counting from there


def of_replica(job: Job, index: int) -> list[Json]:
    """The variables that differ between replicas."""
    own = ["NODE_RANK", "PET_NODE_RANK", "DTJ_REPLICA_INDEX"]
    if job.processes == 1:  # a plain `python train.py` is the rank; a launcher sets its own
        own.append("RANK")
    return [{"name": name, "value": str(index)} for name in own]


def shared(job: Job, container: Json, context: PodContext) -> list[Json]:
    """The variables that all replicas have; with those of the user, which may refer to any before them.

    A variable whose value is None is left out.
    """
    users: list[Json] = list(container.get("env") or ())
    taken = {variable.get("name") for variable in users}
    ours = [*_rendezvous(job, context), *_torchrun(job, context), *_identity(job, context), *_folders(job)]
    ours += [(name, value) for name, value in _defaults(job, container) if name not in taken]
    # By reference: in a copy of the pod it is the copy's name, as everything else is that of the original.
    pod = {"name": "DTJ_POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}
    return [pod, *({"name": name, "value": str(value)} for name, value in ours if value is not None), *users]


def master_address(job: Job) -> str:
    """DNS name of replica 0; the same in every attempt."""
    return f"{names.pod_name(job.name, 0)}.{job.name}.{job.namespace}.svc"


def _rendezvous(job: Job, context: PodContext) -> Iterator[tuple[str, object]]:
    world_size = context.size * job.processes
    yield from (("MASTER_ADDR", master_address(job)), ("MASTER_PORT", job.master_port))
    yield from (("WORLD_SIZE", world_size), ("NNODES", context.size))
    yield "NPROC_PER_NODE", job.processes
    if job.processes == 1:
        yield from (("LOCAL_RANK", 0), ("LOCAL_WORLD_SIZE", 1))


def _torchrun(job: Job, context: PodContext) -> Iterator[tuple[str, object]]:
    """The variables from which torchrun takes the defaults of its flags."""
    yield "PET_NPROC_PER_NODE", job.processes
    yield from (("PET_MASTER_ADDR", master_address(job)), ("PET_MASTER_PORT", job.master_port))
    if job.elastic is None:
        # The operator restarts, not torchrun.
        yield from (("PET_NNODES", context.size), ("PET_MAX_RESTARTS", 0))
        return
    yield from (("PET_NNODES", f"{job.min_replicas}:{job.max_replicas}"), ("PET_RDZV_BACKEND", "c10d"))
    yield "PET_RDZV_ENDPOINT", f"{master_address(job)}:{job.master_port}"
    yield "PET_RDZV_ID", f"{job.uid}-{context.attempt}"  # so a pod of an older attempt cannot join
    yield "PET_MAX_RESTARTS", job.recovery.max_restarts


def _identity(job: Job, context: PodContext) -> Iterator[tuple[str, object]]:
    yield from (("DTJ_JOB", job.name), ("DTJ_NAMESPACE", job.namespace), ("DTJ_JOB_UID", job.uid))
    yield "DTJ_ATTEMPT", context.attempt
    yield from (("DTJ_REPLICAS", context.size), ("DTJ_MIN_REPLICAS", job.min_replicas))
    yield from (("DTJ_MAX_REPLICAS", job.max_replicas), ("DTJ_PROCESSES", job.processes))
    if job.success:
        yield "DTJ_SUCCESS_REPLICAS", ",".join(map(str, sorted(job.success)))
    yield from (("DTJ_AGENT_PORT", names.AGENT_PORT), ("DTJ_MAX_RESTARTS", context.restarts_left))
    # Grows from each pod of a replica to the next one.
    yield "DTJ_RESTARTS", context.restarts.counted + context.restarts.disruptions
    yield "DTJ_RESTARTS_IN_PLACE", context.restarts.in_place_of_attempt
    yield "DTJ_RESTART_WINDOW_SECONDS", job.recovery.window_s
    yield "DTJ_MAX_RESTARTS_WITHOUT_PROGRESS", job.recovery.max_restarts_without_progress
    yield "DTJ_RESTARTS_WITHOUT_PROGRESS", context.restarts.without_progress
    yield "DTJ_BACKOFF_SECONDS", job.recovery.backoff_s
    yield "DTJ_HIGHEST_STEP", context.restarts.highest_step
    yield "DTJ_GRACE_SECONDS", job.grace_s
    yield "DTJ_HANG_ACTION", job.hang.action
    yield from (("DTJ_HANG_SECONDS", job.hang.timeout_s), ("DTJ_HANG_WORKING_SECONDS", job.hang.working_s))


def _folders(job: Job) -> Iterator[tuple[str, object]]:
    if job.checkpoint is None:
        return
    mount = job.checkpoint.mount_path
    yield "DTJ_CHECKPOINT_DIR", posixpath.join(mount, job.namespace, job.name, job.uid[:8])
    if earlier := job.checkpoint.resume_from:  # of an earlier job: the folder of all runs with that name
        path = earlier.path or posixpath.join(job.namespace, earlier.job or "")
        yield "DTJ_RESUME_DIR", posixpath.join(mount, path)


def _defaults(job: Job, container: Json) -> Iterator[tuple[str, object]]:
    yield "PYTHONUNBUFFERED", 1
    cores = quantity.parse(((container.get("resources") or {}).get("limits") or {}).get("cpu"))
    if cores is not None:  # else every rank starts a thread per core of the node, and the ranks compete
        yield "OMP_NUM_THREADS", max(1, math.floor(cores / job.processes))
