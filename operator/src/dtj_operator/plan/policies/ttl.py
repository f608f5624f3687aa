"""When is a finished job deleted?"""

from dtj_operator.plan.snapshot import Snapshot


def due_at(s: Snapshot) -> float | None:
    """When the job is deleted, or None if it is kept."""
    if s.job.ttl_s is None or s.memory.completed_at is None:
        return None
    return s.memory.completed_at + s.job.ttl_s
