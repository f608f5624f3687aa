"""When has a job succeeded?"""

from dtj_operator.plan import blame
from dtj_operator.plan.actions import Succeed
from dtj_operator.plan.snapshot import Snapshot

# A pod that was bound less than this before the end could no longer join the run; if it did, it has finished
# too.
TOO_LATE_S = 10.0


def success(s: Snapshot) -> Succeed | None:
    """All: every participating replica has succeeded. Rank0: replica 0 has, whatever the others do."""
    done = s.memory.done | {index for index, pod in s.current.items() if s.succeeded(pod)}
    if s.job.success == "Rank0":
        return Succeed("Rank0Succeeded") if 0 in done else None
    left = set(range(s.size)) - s.excluded - done
    return Succeed("AllRanksSucceeded") if left <= _too_late(s) else None


def _too_late(s: Snapshot) -> set[int]:
    """Replicas that would wait for replica 0 forever, because the run was over before they could join it.

    For example a replica that was scheduled as soon as the first of the others had finished.
    """
    run_finished_at = blame.run_finished_at(s)
    if run_finished_at is None:
        return set()
    begun = {i for i, pod in s.current.items() if pod.phase != "Pending"}
    placed = {i: pod.condition("PodScheduled") for i, pod in s.current.items()}
    late = {
        i
        for i, condition in placed.items()
        if condition and condition.since and condition.since > run_finished_at - TOO_LATE_S
    }
    return set(range(s.size)) - set(s.vanished) - (begun - late)
