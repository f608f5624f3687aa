"""Can the agents of this attempt heal around a pod that is replaced?"""

from dtj_operator.plan.actions import Trust
from dtj_operator.plan.snapshot import REPLICA, Snapshot


def trust(s: Snapshot) -> Trust | None:
    """Written down before anything relies on it; a new attempt has to say it anew."""
    able = s.answer is not None and s.answer.rejoin
    return Trust() if able and s.job.recovery.scope == "Auto" and s.scope != REPLICA else None
