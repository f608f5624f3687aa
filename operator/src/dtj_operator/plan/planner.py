"""plan(snapshot) -> Decision. The list of policies is the table of contents of the operator's behaviour.

Verdicts come before actions: they are written to the status, and the next step acts on what is written.
"""

from dataclasses import replace
from functools import partial

from dtj_operator.model import names
from dtj_operator.model.children import Child, Refusal
from dtj_operator.model.memory import RECOVERING, SUSPENDED
from dtj_operator.model.times import soonest
from dtj_operator.model.views import PodView
from dtj_operator.plan import blame, gang, isolation, queue, remote, starting
from dtj_operator.plan.actions import (
    Action,
    AwaitCause,
    Create,
    CreatePod,
    Decision,
    DeleteChild,
    DeleteJob,
    DeletePod,
    Fail,
)
from dtj_operator.plan.children.env import PodContext
from dtj_operator.plan.children.networking import networking
from dtj_operator.plan.children.pod import pod_maker
from dtj_operator.plan.node_loss import force_delete_lost
from dtj_operator.plan.policies import avoid, deadline, size, success, ttl
from dtj_operator.plan.policies.cleanup import FAILED_GRACE_S, cleanup
from dtj_operator.plan.policies.restart import backoff_until, fail_healed, restart, within_window
from dtj_operator.plan.policies.scope import use_replica_scope
from dtj_operator.plan.policies.suspend import suspend
from dtj_operator.plan.policies.ungroup import ungroup
from dtj_operator.plan.snapshot import Gone, Snapshot
from dtj_operator.plan.unsupported import unsupported

UNWATCHED_POLL_S = 1.0  # our watch does not see pods without our label, so poll for their deletion
FOREIGN_POLL_S = 30.0  # how often to check whether a Service that is not ours is gone


def bad_spec(s: Snapshot) -> Fail | None:
    return Fail("BadSpec", str(s.job.error)) if s.job.error else None


POLICIES = (  # the first verdict wins
    bad_spec,
    success.success,
    suspend,
    deadline.deadline,
    fail_healed,  # before any verdict records that failure
    use_replica_scope,
    restart,
    avoid.allow_nodes,
    ungroup,
    size.resize,
)
# Of a suspended job, whose last ranks may be done just then, and of one whose pods are in another cluster.
HELD_POLICIES = (bad_spec, success.success, suspend)


def plan(s: Snapshot) -> Decision:
    """Decide what to do about one job now, and when to requeue it if nothing happens."""
    if unsupported(s) and not s.job.deleting:
        return Decision()
    decision = force_delete_lost(s, _plan(s))
    deleted = decision.deleted_pods
    unseen = any(pod.mislabelled and (pod.deleting or pod.uid in deleted) for pod in s.pods)
    if not unseen:
        return decision
    return replace(decision, requeue_at=soonest(decision.requeue_at, s.now + UNWATCHED_POLL_S))


def _plan(s: Snapshot) -> Decision:
    if s.job.deleting:
        return Decision(actions=_delete(s))
    if s.memory.finished:
        return _finished(s)
    if remote.has_copy(s):
        return remote.plan_for_copy(s)
    is_held = s.memory.phase == SUSPENDED or s.job.remote
    policies = HELD_POLICIES if is_held else POLICIES
    verdict = next((found for policy in policies if (found := policy(s)) is not None), None)
    if isinstance(verdict, AwaitCause):
        return Decision(requeue_at=verdict.until)
    if verdict is not None:
        return Decision(verdict=verdict)
    return _suspended(s) if is_held else _converge(s)


def plan_gone(gone: Gone) -> Decision:
    """Delete the children of a job that no longer exists at once; the garbage collector is the backup.

    Service and NetworkPolicy follow when the last pod is gone: terminating ranks stay isolated and reach each
    other, and if many jobs are deleted, their pods go first.

    Keep those that lost their owner on purpose (`kubectl delete --cascade=orphan`). The cache may not know
    that yet, hence `unchanged`.
    """
    pods = [pod for pod in gone.pods if pod.owner_uid]
    if pods:
        actions = tuple(DeletePod(pod, unchanged=True) for pod in pods if not pod.deleting)
        return force_delete_lost(gone, Decision(actions=actions))
    return Decision(actions=tuple(DeleteChild(kind, uid) for kind, uid in gone.children.items()))


def _finished(s: Snapshot) -> Decision:
    due = ttl.due_at(s)
    if due is not None and s.now >= due:
        return Decision(actions=(DeleteJob(),))
    told = () if s.job.remote else queue.actions_when_finished(s)
    return Decision(actions=cleanup(s) + gang.delete_obsolete(s, all_of_them=True) + told, requeue_at=due)


def _delete(s: Snapshot) -> tuple[Action, ...]:
    """With the pods' own grace period, in which they may commit a checkpoint."""
    pods = tuple(DeletePod(old) for old in s.pods if old.owner_uid and not old.deleting)
    return pods + gang.delete_obsolete(s, all_of_them=True)


def _suspended(s: Snapshot) -> Decision:
    refusal = queue.obstacle(s)
    again = s.now + FOREIGN_POLL_S if refusal else queue.requeue_at(s)
    actions = _delete(s) + queue.actions_while_suspended(s)
    return Decision(actions=actions, refusal=refusal, requeue_at=again)


def _converge(s: Snapshot) -> Decision:
    """Create the missing pods of the current attempt; attempts never overlap."""
    old_pods = tuple(DeletePod(old, _grace_s(s, old)) for old in s.obsolete if not old.deleting)
    retired = old_pods + gang.delete_obsolete(s) + queue.actions_while_running(s)
    again = soonest(
        *(policy.requeue_at(s) for policy in (size, avoid, success, starting, isolation)), deadline.due_at(s)
    )
    if any(s.is_of_another_attempt(old) for old in s.obsolete):
        return Decision(actions=retired, requeue_at=again)
    taken = {old.name for old in s.obsolete}
    absent = [i for i in s.missing if names.pod_name(s.job.name, i) not in taken]
    if not absent:
        made = _networking(s) + gang.actions(s)
        return Decision(actions=made + retired, requeue_at=soonest(again, _revert_at(s)))
    if s.now < backoff_until(s):
        return Decision(actions=retired, requeue_at=soonest(backoff_until(s), again))
    foreign = next((kind for kind, child in s.children.items() if child is Child.FOREIGN), None)
    refusal = name_conflict(foreign, s.job.name) if foreign else queue.obstacle(s)
    if refusal is not None:
        return Decision(actions=retired, refusal=refusal, requeue_at=s.now + FOREIGN_POLL_S)
    group, settings = gang.group_to_join(s), queue.pod_settings(s)
    if gang.waits_for_terminating(s, group):
        return Decision(actions=retired, requeue_at=soonest(again, gang.preempting_until(s)))
    avoided = avoid.avoided(s)
    make = pod_maker(
        s.job,
        _pod_context(s),
        avoid=avoided.required,
        avoid_if_possible=avoided.preferred,
        pod_group=group,
        admitted=settings,
        awaits_node=queue.chooses_nodes(s),
    )
    first = _networking(s) + gang.actions(s)
    creates = tuple(CreatePod(partial(make, index)) for index in absent)
    return Decision(actions=first + retired + creates, requeue_at=soonest(again, _revert_at(s)))


def _pod_context(s: Snapshot) -> PodContext:
    restarts = s.memory.restarts
    left = max(0, s.job.recovery.max_restarts - len(within_window(s, restarts.counted_at)))
    return PodContext(attempt=s.memory.attempt, size=s.size, restarts_left=left, restarts=restarts)


def _grace_s(s: Snapshot, old: PodView) -> int | None:
    """Failed pods have nothing left to save; others may commit a checkpoint in their own grace period."""
    replaced = s.memory.private.replacing.get(old.index) == old.uid
    disrupted = s.memory.failure.get("reason") in blame.DISRUPTIONS
    lost_a_peer = s.memory.phase == RECOVERING and not disrupted and s.is_of_another_attempt(old)
    return FAILED_GRACE_S if replaced or lost_a_peer else None


def _networking(s: Snapshot) -> tuple[Action, ...]:
    """Create absent network objects; revert edits of the others."""
    wrong = (Child.ABSENT, Child.EDITED) if s.now >= s.revert_at else (Child.ABSENT,)
    kinds = [kind for kind, child in s.children.items() if child in wrong]
    bodies = networking(s.job, s.readers) if kinds else {}
    return tuple(Create(bodies[kind]) for kind in kinds)


def _revert_at(s: Snapshot) -> float | None:
    """When an edit may be reverted again, counted from the last time."""
    return s.revert_at if Child.EDITED in s.children.values() and s.revert_at > s.now else None


def name_conflict(kind: str, name: str) -> Refusal:
    """The refusal if an object of a name that the job needs belongs to another owner; it is left alone."""
    return Refusal(
        reason="NameConflict",
        message=f"{kind} {name} exists and does not belong to this job; "
        "delete it, or create the job under another name",
    )
