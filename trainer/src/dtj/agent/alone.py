"""A second agent in a pod, as after `kubectl exec job-1 -- dtj run check.py`: it has no part in the job.

It inherits the environment of the first one. With that it would join the job as a newer agent of the same
replica, and write to the job's checkpoints.
"""

import contextlib
import fcntl
import os
from collections.abc import MutableMapping
from pathlib import Path

from dtj import contract

# A lock of this kind ends with the process, and forked ranks do not hold it.
_FOLDER = Path("/dev/shm")
_LOCK = "dtj-agent"
_PREFIXES = ("DTJ_", "PET_")
_NAMES = (
    *(contract.MASTER_ADDR, contract.MASTER_PORT, contract.NODE_RANK, contract.NNODES),
    *(contract.NPROC_PER_NODE, contract.RANK, contract.LOCAL_RANK),
    *(contract.WORLD_SIZE, contract.LOCAL_WORLD_SIZE),
)


def leave_job_to_first_agent(env: MutableMapping[str, str]) -> bool:
    """If another agent of this replica runs here, remove the job from `env` and return True.

    Otherwise this process is the first one from now on. Without a job there is nothing to leave.
    """
    if contract.JOB not in env or _is_first(env):
        return False
    for name in filter(is_of_job, list(env)):
        del env[name]
    return True


def is_of_job(name: str) -> bool:
    """Whether a job or a launcher sets the environment variable of this name."""
    return name.startswith(_PREFIXES) or name in _NAMES


def forget(uid: str) -> None:
    """Remove what the agents of a job without pods left on this machine; a pod's memory goes with it."""
    for lock in _FOLDER.glob(f"{_LOCK}-{uid}-*"):
        lock.unlink(missing_ok=True)


def _is_first(env: MutableMapping[str, str]) -> bool:
    # The port tells jobs apart that share a machine without being pods, as in tests.
    replica = (contract.JOB_UID, contract.NODE_RANK, contract.MASTER_PORT)
    identity = (*replica, contract.ATTEMPT, contract.RESTARTS)
    name = "-".join([_LOCK, *(Path(env.get(each, "")).name for each in identity)])
    try:
        fd = os.open(_FOLDER / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError:  # no shared memory, or another user's: nothing is known of another agent
        return True
    with contextlib.suppress(BlockingIOError, PermissionError):
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the file stays open as long as this process runs
        return True
    os.close(fd)
    return False
