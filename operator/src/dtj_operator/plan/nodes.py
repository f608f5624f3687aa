"""What is left to a node that is lost: nothing, for a dead kubelet never says that a pod is gone.

Nodes that nobody may read are never lost, and neither is any where none is ready: then it is the control
plane that has lost sight of them.
"""

from dataclasses import replace

from dtj_operator.plan.actions import Action, Decision, DeletePod
from dtj_operator.plan.pace import soonest
from dtj_operator.plan.placement import Placed

FORCED_GRACE_S = 0
LOOK_S = 4.0  # between two looks at the leases of nodes that are in doubt


def let_go(where: Placed, decision: Decision) -> Decision:
    """The same decision, with nothing of it left to a node that is lost."""
    if decision.verdict is not None:
        return decision
    actions = tuple(_forced(where, action) for action in decision.actions)
    stuck = tuple(
        DeletePod(pod, FORCED_GRACE_S)
        for pod in where.pods
        if pod.owner_uid and pod.deleting and where.lost(pod)
    )
    return replace(
        decision, actions=actions + stuck, look_again_at=soonest(decision.look_again_at, _look_at(where))
    )


def _forced(where: Placed, action: Action) -> Action:
    if isinstance(action, DeletePod) and where.lost(action.pod):
        return replace(action, grace_s=FORCED_GRACE_S)
    return action


def _look_at(where: Placed) -> float | None:
    """When the next node of these pods will have been away for too long, or is to be looked at again."""
    moments = [where.lost_at(pod) for pod in where.pods if pod.deleting or not pod.ended]
    if where.doubted_nodes:
        moments.append(where.now + LOOK_S)
    return min((at for at in moments if at is not None and at > where.now), default=None)
