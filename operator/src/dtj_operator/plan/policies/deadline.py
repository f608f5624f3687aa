"""Has the job been active for too long?"""

from dtj_operator.plan.actions import Fail
from dtj_operator.plan.snapshot import Snapshot


def due_at(s: Snapshot) -> float | None:
    """As in batch/v1: counted from startTime, which a resume resets; waiting for nodes counts."""
    if s.job.deadline_s is None or s.memory.started_at is None:
        return None
    return s.memory.started_at + s.job.deadline_s


def deadline(s: Snapshot) -> Fail | None:
    due = due_at(s)
    if due is None or s.now < due:
        return None
    return Fail(
        "DeadlineExceeded", f"the job was active for longer than activeDeadlineSeconds ({s.job.deadline_s} s)"
    )
