"""When is a job done?"""

from dtj_operator.plan.actions import Succeed
from dtj_operator.plan.snapshot import Snapshot


def success(s: Snapshot) -> Succeed | None:
    """All: every replica that takes part is done. Rank0: replica 0 is, whatever the others do."""
    done = s.memory.done | {index for index, pod in s.current.items() if s.succeeded(pod)}
    if s.job.success == "Rank0":
        return Succeed("Rank0Succeeded") if 0 in done else None
    return Succeed("AllRanksSucceeded") if done.issuperset(set(range(s.size)) - s.left_out) else None
