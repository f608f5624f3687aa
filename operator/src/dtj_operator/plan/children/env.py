"""The environment of the training container: the wiring of the ranks, as docs/contract.md has it.

Ours comes first in the list, so that the user's own variables may refer to it: $(DTJ_REPLICA_INDEX).
"""

import math
import posixpath
from collections.abc import Iterator
from typing import Any

from dtj_operator import names, quantity
from dtj_operator.spec import Checkpoint, Job

Json = dict[str, Any]


def environment(job: Job, container: Json, index: int, attempt: int) -> list[Json]:
    """The whole `env` of the training container of replica `index`."""
    own: list[Json] = list(container.get("env") or ())
    taken = {variable.get("name") for variable in own}
    ours = [*_wiring(job, index), *_identity(job, index, attempt), *_folders(job)]
    defaults = [(name, value) for name, value in _defaults(job, container) if name not in taken]
    return [{"name": name, "value": str(value)} for name, value in (*ours, *defaults)] + own


def master_address(job: Job) -> str:
    """DNS name of replica 0; the same in every attempt."""
    return f"{names.pod_name(job.name, 0)}.{job.name}.{job.namespace}.svc"


def _wiring(job: Job, index: int) -> Iterator[tuple[str, object]]:
    address = master_address(job)
    yield from (("MASTER_ADDR", address), ("MASTER_PORT", job.master_port), ("WORLD_SIZE", job.world_size))
    yield from (("NODE_RANK", index), ("NNODES", job.replicas), ("NPROC_PER_NODE", job.processes))
    if (
        job.processes == 1
    ):  # a plain `python train.py` is a rank; with more it is a launcher, and sets its own
        yield from (("RANK", index), ("LOCAL_RANK", 0), ("LOCAL_WORLD_SIZE", 1))
    yield from (("PET_NNODES", job.replicas), ("PET_NPROC_PER_NODE", job.processes), ("PET_NODE_RANK", index))
    yield from (("PET_MASTER_ADDR", address), ("PET_MASTER_PORT", job.master_port))
    yield ("PET_MAX_RESTARTS", 0)  # the operator restarts, not torchrun


def _identity(job: Job, index: int, attempt: int) -> Iterator[tuple[str, object]]:
    yield from (("DTJ_JOB", job.name), ("DTJ_NAMESPACE", job.namespace), ("DTJ_JOB_UID", job.uid))
    yield from (("DTJ_ATTEMPT", attempt), ("DTJ_REPLICA_INDEX", index), ("DTJ_REPLICAS", job.replicas))
    yield from (("DTJ_PROCESSES", job.processes), ("DTJ_AGENT_PORT", names.AGENT_PORT))


def _folders(job: Job) -> Iterator[tuple[str, object]]:
    if job.checkpoint is None:
        return
    mount = job.checkpoint.mount_path
    yield "DTJ_CHECKPOINT_DIR", posixpath.join(mount, job.namespace, job.name, job.uid[:8])
    if job.checkpoint.resume_from:
        yield "DTJ_RESUME_DIR", _resume_folder(job, job.checkpoint, job.checkpoint.resume_from)


def _resume_folder(job: Job, checkpoint: Checkpoint, resume_from: str) -> str:
    """A name is an earlier job of this namespace; with a slash it is a path below the mount."""
    below = resume_from.strip("/") if "/" in resume_from else posixpath.join(job.namespace, resume_from)
    return posixpath.join(checkpoint.mount_path, below)


def _defaults(job: Job, container: Json) -> Iterator[tuple[str, object]]:
    yield "PYTHONUNBUFFERED", 1
    limit = ((container.get("resources") or {}).get("limits") or {}).get("cpu")
    cores = quantity.parse(limit) if limit is not None else None
    if cores is not None:  # else every rank starts a thread per core of the node, and they fight
        yield "OMP_NUM_THREADS", max(1, math.floor(cores / job.processes))
