"""Kills a rank with all that it started, but not what frees the memory that they shared."""

import contextlib
import os
import signal
from pathlib import Path

from dtj.agent.rank import process_usage

# Of Python, and of joblib: the process that removes the shared memory of others once they are dead.
_TRACKER = b"resource_tracker import main"


def kill(group: int) -> None:
    """Kill all processes of the group, if any is left, but the trackers, which then end by themselves.

    Without its tracker, a rank that is killed leaves its segments behind: memory of the pod, at each restart.
    """
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, 0)  # nothing is left of most ranks: do not read the table of processes
        trackers = {pid for pid in _members(group) if _is_tracker(pid)}
        if not trackers:
            os.killpg(group, signal.SIGKILL)
            return
        killed = trackers
        while new := _members(group) - killed:
            for pid in new:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            killed |= new


def _members(group: int) -> set[int]:
    with contextlib.suppress(OSError):  # too many open files, for example
        return {pid for pid, process in process_usage.processes().known.items() if process.group == group}
    return set()


def _is_tracker(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return _TRACKER in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False
