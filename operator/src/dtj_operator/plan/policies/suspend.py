"""Should the job be suspended or resumed?"""

from dtj_operator.model.memory import SUSPENDED
from dtj_operator.plan.actions import Resume, Suspend
from dtj_operator.plan.snapshot import Snapshot


def suspend(s: Snapshot) -> Suspend | Resume | None:
    """A suspended job keeps its Service and its status; a resumed job gets a new start time."""
    if s.job.suspend and s.memory.phase != SUSPENDED:
        return Suspend()
    if not s.job.suspend and s.memory.phase == SUSPENDED:
        return Resume()
    return None
