"""An agent that has a job's environment, and no part in the job.

    a second one in a pod      `kubectl exec job-1 -- dtj run check.py`
    one in a copy of a pod     `kubectl debug job-1 --copy-to=job-1-debug`

With that environment it would join the job as a newer agent of the same replica, and write to the job's
checkpoints.
"""

import contextlib
import fcntl
import os
from collections.abc import Mapping, MutableMapping
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


def leave_job(env: MutableMapping[str, str]) -> str:
    """If this agent has no part in the job of `env`, remove the job from it and return why; otherwise "".

    Of several agents in a pod, the first one to call this has a part in it.
    """
    why = _why_not_of_job(env)
    for name in filter(is_of_job, list(env) if why else ()):
        del env[name]
    return why


def is_of_job(name: str) -> bool:
    """Whether a job or a launcher sets the environment variable of this name."""
    return name.startswith(_PREFIXES) or name in _NAMES


def forget(uid: str) -> None:
    """Remove what the agents of a job without pods left on this machine; a pod's memory goes with it."""
    for lock in _FOLDER.glob(f"{_LOCK}-{uid}-*"):
        lock.unlink(missing_ok=True)


def _why_not_of_job(env: Mapping[str, str]) -> str:
    if contract.JOB not in env:
        return ""
    original = f"{env[contract.JOB]}-{env.get(contract.REPLICA_INDEX)}"
    if env.get(contract.POD, original) != original:
        return f"this pod is a copy of {original}"
    return "" if _is_first(env) else "another agent runs this replica of the job"


def _is_first(env: Mapping[str, str]) -> bool:
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
