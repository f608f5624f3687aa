"""What is deleted when a job has finished?"""

from dtj_operator.model.children import Child
from dtj_operator.plan.actions import Action, DeleteChild, DeletePod
from dtj_operator.plan.snapshot import Snapshot

FAILED_GRACE_S = 5  # ranks that lost a peer have nothing left to save
# Healthy ranks may still commit a checkpoint after these.
GRACEFUL_ENDS = ("DeadlineExceeded", "SuccessPolicy", "AllRanksSucceeded")

EXISTING = (Child.PRESENT, Child.EDITED)


def cleanup(s: Snapshot) -> tuple[Action, ...]:
    """Delete pods by cleanPodPolicy: Running deletes unfinished pods, All all, None none.

    The Service and the NetworkPolicy follow once no pod runs: ranks that still save stay isolated, and reach
    each other.
    """
    which = s.job.clean_pods  # a pod whose container has exited keeps its log
    unwanted = [pod for pod in s.owned if which == "All" or (which == "Running" and not pod.ended)]
    end = s.memory.condition("Failed") or s.memory.condition("Complete")
    grace_s = None if end.get("reason") in GRACEFUL_ENDS else FAILED_GRACE_S
    running = any(not pod.ended for pod in s.owned)
    children = [] if running else [kind for kind, child in s.children.items() if child in EXISTING]
    return (*(DeletePod(pod, grace_s) for pod in unwanted if not pod.deleting), *map(DeleteChild, children))
