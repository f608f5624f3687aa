"""Which PodGroup do new pods join, and which PodGroups are obsolete?

all pods of an attempt      join its PodGroup: bound together, or not at all
one pod replaced            joins too: the other pods of the group run, so it is complete at once
replaced after one finished joins none: the scheduler does not count finished pods, so a group that can
                            no longer be complete would never be placed
unbound in such a group     recreated without it, as after another pod lost its schedulingGroup
"""

from dtj_operator.model import names, times
from dtj_operator.model.memory import RECOVERING
from dtj_operator.model.views import PodGroupView, PodView
from dtj_operator.plan.actions import Action, Create, Delete
from dtj_operator.plan.children.podgroup import pod_group
from dtj_operator.plan.snapshot import Snapshot

# The scheduler deletes the pods of a gang that it preempts one by one, the last one after all others.
PREEMPTION_S = 10.0
_PREEMPTED = "preempting to accommodate a higher priority"  # in its message about a pod


def group_to_join(s: Snapshot) -> str | None:
    """Name of the PodGroup that new pods join; None: each is placed on its own."""
    if not s.gang_api or not wants_gang(s):
        return None
    known, name = _current(s), _name(s)
    if known is not None and known.deleting:  # it disappears with the last of its pods
        return None
    needed = s.job.min_replicas if known is None else known.min_count
    joined = sum(pod.pod_group == name and not pod.ended for pod in s.current.values())
    return name if joined + len(s.missing) >= needed else None


def stranded(s: Snapshot) -> list[PodView]:
    """Pods that wait in the attempt's PodGroup, although it can no longer have all the pods that it needs."""
    known = _current(s)
    if known is None:
        return []
    members = [pod for pod in s.current.values() if pod.pod_group == known.name and not pod.ended]
    may_join = len(s.missing) if s.gang_api and wants_gang(s) and not known.deleting else 0
    if len(members) + may_join >= known.min_count:
        return []
    return [pod for pod in members if pod.phase == "Pending" and not pod.node and not pod.deleting]


def waits_for_terminating(s: Snapshot, group: str | None) -> bool:
    """Whether new pods would join terminating ones, as while a whole gang is preempted.

    The scheduler counts pods that terminate, and those that it is about to delete: it would bind new pods to
    nodes, and the rest could not follow.
    """
    known = _current(s)
    if group is None or known is None:
        return False
    members = [pod for pod in s.owned if pod.pod_group == group]
    staying = sum(not pod.deleting and not pod.ended for pod in members)
    more = staying > 0 and preempting_until(s) is not None
    return staying < known.min_count and (more or any(pod.deleting for pod in members))


def preempting_until(s: Snapshot) -> float | None:
    """Until when the scheduler may delete more pods of a gang that it preempts; None: it does not."""
    failure = s.memory.failure
    if s.memory.phase != RECOVERING or _PREEMPTED not in str(failure.get("message")):
        return None
    at = times.parse(failure.get("at"))
    until = None if at is None else at + PREEMPTION_S
    return until if until is not None and s.now < until <= s.now + PREEMPTION_S else None


def actions(s: Snapshot) -> tuple[Action, ...]:
    """Create the PodGroup if it is absent: pods that name it wait for it, new ones and existing ones."""
    if group_to_join(s) is None or _current(s) is not None:
        return ()
    return (Create(pod_group(s.job, s.memory.attempt, s.gang_api)),)


def delete_obsolete(s: Snapshot, *, all_of_them: bool = False) -> tuple[Action, ...]:
    """Delete the PodGroups of earlier attempts; they are gone once their pods are."""
    if not s.gang_api:
        return ()
    return tuple(
        Delete(group)
        for group in s.pod_groups
        if group.owner_uid == s.job.uid and not group.deleting and (all_of_them or group.name != _name(s))
    )


def waits_for(s: Snapshot) -> str:
    """What the attempt's PodGroup waits for, with the scheduler's words; empty if it does not wait."""
    known = _current(s)
    waits = known is not None and any(not p.node and p.pod_group == known.name for p in s.current.values())
    if known is None or not known.waits_for or not waits:
        return ""
    return f"PodGroup {known.name} needs capacity for {known.min_count} pods at once: {known.waits_for}"


def placed_one_by_one(s: Snapshot) -> str:
    """How one can tell that the scheduler ignores PodGroups; empty if it does not, or nothing shows it.

    A scheduler that knows PodGroups writes a condition of each one that it tries to place.
    """
    known = _current(s)
    if known is None or known.decided:
        return ""
    members = [pod for pod in s.current.values() if pod.pod_group == known.name]
    bound = sum(bool(pod.node) for pod in members)
    if not 0 < bound < known.min_count or not any(pod.unschedulable for pod in members):
        return ""
    return (
        f"{bound} of at least {known.min_count} pods that PodGroup {known.name} needs have a node, and the "
        "scheduler has not tried to place the PodGroup"
    )


def unreleased(s: Snapshot) -> str:
    """The PodGroup of a deleted job whose name the attempt's PodGroup needs, although its pods are gone.

    The controller manager releases it then, unless its gate is off. Empty if the name is free.
    """
    name = _name(s)
    if group_to_join(s) is None or any(pod.owner_uid != s.job.uid for pod in s.obsolete):
        return ""
    left = (g for g in s.pod_groups if g.name == name and g.owner_uid != s.job.uid and g.deleting)
    return next((group.name for group in left), "")


def wants_gang(s: Snapshot) -> bool:
    """A template that names a group or another scheduler has its own way to place gangs."""
    given, usual = s.job.template["spec"], names.DEFAULT_SCHEDULER
    own = given.get("schedulingGroup") or given.get("schedulerName", usual) != usual
    return s.job.scheduling.gang == "Auto" and s.job.min_replicas > 1 and not own


def _name(s: Snapshot) -> str:
    return names.pod_group_name(s.job.name, s.memory.attempt)


def _current(s: Snapshot) -> PodGroupView | None:
    name = _name(s)
    return next((g for g in s.pod_groups if g.name == name and g.owner_uid == s.job.uid), None)
