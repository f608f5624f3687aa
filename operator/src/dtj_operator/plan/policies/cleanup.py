"""What remains of a job that has ended?"""

from dtj_operator.kube.views import PodView
from dtj_operator.plan.actions import Action, DeleteNetworkPolicy, DeletePod, DeleteService
from dtj_operator.plan.snapshot import Child, Snapshot

FAILED_GRACE_S = 5  # ranks that lost a peer have nothing left to save
ORDERLY = ("DeadlineExceeded", "Rank0Succeeded", "AllRanksSucceeded")  # healthy ranks may commit a checkpoint

OURS = (Child.PRESENT, Child.EDITED)


def cleanup(s: Snapshot) -> tuple[Action, ...]:
    """Pods by cleanPodPolicy: Running deletes those not finished, All all, None none.

    The Service and the NetworkPolicy always go.
    """
    doomed = [pod for pod in s.ours if not pod.deleting and _unwanted(s, pod)]
    grace_s = None if _ending(s) in ORDERLY else FAILED_GRACE_S
    actions: list[Action] = [DeletePod(pod, grace_s) for pod in doomed]
    if s.service in OURS:
        actions.append(DeleteService())
    if s.network_policy in OURS:
        actions.append(DeleteNetworkPolicy())
    return tuple(actions)


def _unwanted(s: Snapshot, pod: PodView) -> bool:
    if s.job.clean_pods == "Running":
        return not pod.ended  # a pod that is about to settle keeps its log
    return s.job.clean_pods == "All"


def _ending(s: Snapshot) -> str:
    ending = s.memory.condition("Failed") or s.memory.condition("Complete") or {}
    return str(ending.get("reason", ""))
