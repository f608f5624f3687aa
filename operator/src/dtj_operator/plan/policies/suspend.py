"""Does the user want the job to pause, or to go on?"""

from dtj_operator.plan.actions import Resume, Suspend
from dtj_operator.plan.snapshot import SUSPENDED, Snapshot


def suspend(s: Snapshot) -> Suspend | Resume | None:
    """A suspended job keeps its Service and its memory; a resumed one gets a new start time."""
    if s.job.suspend and s.memory.phase != SUSPENDED:
        return Suspend()
    if not s.job.suspend and s.memory.phase == SUSPENDED:
        return Resume()
    return None
