"""When is a job done?"""

from dtj_operator.plan import blame
from dtj_operator.plan.actions import Succeed
from dtj_operator.plan.snapshot import Snapshot

# A pod that was placed later than this before the end could not join any more; and if it did it is done, too.
TOO_LATE_S = 10.0


def success(s: Snapshot) -> Succeed | None:
    """All: every replica that takes part is done. Rank0: replica 0 is, whatever the others do."""
    done = s.memory.done | {index for index, pod in s.current.items() if s.succeeded(pod)}
    if s.job.success == "Rank0":
        return Succeed("Rank0Succeeded") if 0 in done else None
    left = set(range(s.size)) - s.left_out - done
    return Succeed("AllRanksSucceeded") if left <= _too_late(s) else None


def _too_late(s: Snapshot) -> set[int]:
    """Replicas that would look for replica 0 for ever, for the run was over before they could join it.

    Such as one that found room as soon as the first of the others had ended.
    """
    over_at = blame.over_at(s)
    if over_at is None:
        return set()
    begun = {i for i, pod in s.current.items() if pod.phase != "Pending"}
    placed = {i: pod.condition("PodScheduled") for i, pod in s.current.items()}
    late = {i for i, told in placed.items() if told and told.since and told.since > over_at - TOO_LATE_S}
    return set(range(s.size)) - set(s.vanished) - (begun - late)
