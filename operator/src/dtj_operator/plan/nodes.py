"""Force-delete pods whose kubelet does not confirm that they are gone.

On a lost node at once; on a ready node after a longer wait: there a pod stays Terminating if its kubelet
cannot end it, because a process waits for a device or a file system, or a volume cannot be unmounted.

A node is never lost if the operator has no permission to read nodes, or if no node at all is ready: then the
control plane has lost contact with the nodes.
"""

from dataclasses import replace

from dtj_operator.plan.actions import Action, Decision, DeletePod
from dtj_operator.plan.pace import soonest
from dtj_operator.plan.placement import PodsOnNodes

FORCED_GRACE_S = 0
LEASE_CHECK_S = 4.0  # between two reads of the Leases of suspected nodes


def force_delete_lost(on: PodsOnNodes, decision: Decision) -> Decision:
    """The same decision, with every deletion on a lost node made a force-deletion."""
    if decision.verdict is not None:
        return decision
    actions = tuple(_forced(on, action) for action in decision.actions)
    stuck = tuple(
        DeletePod(pod, FORCED_GRACE_S)
        for pod in on.pods
        if pod.owner_uid and pod.deleting and (on.lost(pod) or on.forced(pod))
    )
    return replace(
        decision, actions=actions + stuck, requeue_at=soonest(decision.requeue_at, _requeue_at(on))
    )


def _forced(on: PodsOnNodes, action: Action) -> Action:
    if isinstance(action, DeletePod) and on.lost(action.pod):
        return replace(action, grace_s=FORCED_GRACE_S)
    return action


def _requeue_at(on: PodsOnNodes) -> float | None:
    """When the next node becomes lost or pod overdue, or a Lease has to be read again."""
    moments = [
        at for pod in on.pods if (at := on.lost_at(pod)) is not None and (pod.deleting or not pod.ended)
    ]
    for pod in on.pods:
        if pod.deleting:
            moments += [at for at in (on.overdue_at(pod), on.forced_at(pod)) if at is not None]
    if on.nodes_to_check:
        moments.append(on.now + LEASE_CHECK_S)
    return min((at for at in moments if at > on.now), default=None)
