"""When has a job succeeded?"""

from dtj_operator.model.views import PodView
from dtj_operator.plan import blame
from dtj_operator.plan.actions import Succeed
from dtj_operator.plan.policies.size import excluded
from dtj_operator.plan.snapshot import Snapshot

# A pod that was bound less than this before the end could no longer join the run; if it did, it has finished
# too.
TOO_LATE_S = 10.0
ENDING_S = 10.0  # the end of a pod may be seen this much later than that of replica 0
# An agent that took part ends soon after its last rank. One that started so slowly that replica 0 was gone
# would try to reach it forever.
NEVER_JOINED_S = 120.0


def success(s: Snapshot) -> Succeed | None:
    """When the deciding replicas that take part have succeeded: all, or those of spec.successPolicy."""
    done = s.memory.done | {index for index, pod in s.current.items() if s.succeeded(pod)}
    deciding = s.job.success or frozenset(range(s.size))
    left = deciding - excluded(s) - done
    if not deciding & done or not left <= _too_late(s):
        return None
    return Succeed("SuccessPolicy" if s.job.success else "AllRanksSucceeded")


def requeue_at(s: Snapshot) -> float | None:
    """When a pod that still runs, although the run is over, counts as too late; None: that is past.

    If it took part, its end is seen by then. A pod that is deleted before its end takes its log along.
    """
    ended_at = _first_ended_at(s)
    return None if ended_at is None else s.next_of([ended_at + ENDING_S, ended_at + NEVER_JOINED_S])


def _first_ended_at(s: Snapshot) -> float | None:
    """When the end of replica 0 was seen, if the run is over."""
    first = s.current.get(0)
    if blame.run_finished_at(s) is None or first is None or first.seen.exited is None:
        return None
    return s.wall(first.seen.exited)


def _too_late(s: Snapshot) -> set[int]:
    """Replicas that would wait for replica 0 forever, because the run was over before they could join it.

    For example a replica that was scheduled as soon as the first of the others had finished.
    """
    run_finished_at = blame.run_finished_at(s)
    if run_finished_at is None:
        return set()
    here = set(range(s.size)) - set(s.vanished)
    begun = {i for i, pod in s.current.items() if pod.phase != "Pending"}
    ended_at = _first_ended_at(s)
    if ended_at is not None and s.now < ended_at + ENDING_S:
        return here - begun
    if ended_at is not None and s.now >= ended_at + NEVER_JOINED_S:
        return here
    late = {i for i, pod in s.current.items() if _was_bound_too_late(s, pod, run_finished_at)}
    return here - (begun - late)


def _was_bound_too_late(s: Snapshot, pod: PodView, run_finished_at: float) -> bool:
    """By the clocks of the cluster, which may differ: what this process has seen can only refute it.

    After a restart of the operator all pods seem to be bound just now.
    """
    scheduled, exited = pod.condition("PodScheduled"), s.current[0].seen.exited
    if scheduled is None or not scheduled.since or scheduled.since <= run_finished_at - TOO_LATE_S:
        return False
    bound = pod.seen.bound
    return bound is None or exited is None or bound > exited - TOO_LATE_S
