"""Should the job be suspended or resumed? The user decides, and the queue of the job."""

from dtj_operator.model.memory import SUSPENDED
from dtj_operator.plan import queue
from dtj_operator.plan.actions import Resume, Suspend
from dtj_operator.plan.snapshot import Snapshot


def held(s: Snapshot) -> Suspend | None:
    """Why the job may have no pods; None: it may have them."""
    return Suspend() if s.job.suspend else queue.held(s)


def suspend(s: Snapshot) -> Suspend | Resume | None:
    """A suspended job keeps its Service and its status; a resumed job gets a new start time."""
    why = held(s)
    if why is not None:
        return why if s.memory.phase != SUSPENDED else None
    if s.memory.phase != SUSPENDED:
        return None
    return Resume() if s.job.queue is None else Resume(f"queue {s.job.queue.name} admitted the job")
