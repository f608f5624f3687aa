"""A job of which MultiKueue runs a copy in another cluster: here it has a Workload, and no pods.

waits           as for a queue of this cluster; the status says for what
quota reserved  Kueue creates the copy, and writes the copy's status here, so the operator writes none
evicted         the quota goes back after the grace period of the copy's pods, and Kueue deletes the copy
finished        with the copy; Kueue sets the Workload's condition Finished
"""

from dtj_operator.model.memory import SUSPENDED
from dtj_operator.plan import queue
from dtj_operator.plan.actions import Decision, UpdateWorkload
from dtj_operator.plan.snapshot import Snapshot

STOP_S = 10.0  # until the other cluster has heard of the eviction


def has_copy(s: Snapshot) -> bool:
    """Whether the job may have a copy, whose status is the status here."""
    if not s.job.remote or s.job.suspend:
        return False
    if s.queue.problem:
        return s.memory.phase not in ("", SUSPENDED)
    known = s.queue.current
    return known is not None and known.admission is not None


def plan_for_copy(s: Snapshot) -> Decision:
    """Tell Kueue whether the copy's pods are ready, and give the quota back after an eviction.

    The status does not tell when the copy's pods are gone.
    """
    known = s.queue.current
    if known is None or s.queue.problem or known.true("Finished"):
        return Decision()
    evicted = known.if_true("Evicted")
    if evicted is None:
        ready = s.memory.condition("PodsReady")
        return Decision(
            actions=queue.tell_ready(s, known, ready.get("status") == "True", str(ready.get("message", "")))
        )
    due = (s.now if evicted.since is None else evicted.since) + s.job.grace_s + STOP_S
    if s.now < due:
        return Decision(requeue_at=due)
    return Decision(actions=(UpdateWorkload(known, queue.released(s, known), releases=True),))
