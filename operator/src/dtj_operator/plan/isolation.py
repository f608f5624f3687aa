"""Which running pods do the others get no heartbeats from, although Kubernetes reports them healthy?

They are replaced, with scope Replica. If replica 0 hears from no replica on two or more nodes, replica 0
itself is isolated, and the others hold the state of the run.
"""

from dtj_operator.model.memory import REPLICA
from dtj_operator.model.views import PodView
from dtj_operator.plan.snapshot import Snapshot

ISOLATED_AFTER_S = 120.0  # replace a running pod if replica 0 has had no heartbeat from its agent for so long


def isolated_since(s: Snapshot) -> dict[int, float]:
    """Replicas whose pods run but whose heartbeats do not arrive, and since when."""
    answer = s.answer
    if answer is None or s.scope != REPLICA:
        return {}
    unheard = {i: since for i, since in s.silent_since.items() if _is_healthy(s, s.current.get(i), since)}
    nodes = {s.current[i].node for i in unheard}
    # Only running pods send heartbeats.
    running = {i for i, pod in s.current.items() if pod.phase == "Running"} if unheard else set()
    if running <= unheard.keys() | {0} and len(nodes) > 1:
        # They may fall silent at different times, so wait for the last one before deciding.
        unheard = {0: max(unheard.values())}
    return {i: since for i, since in unheard.items() if answer.observed_at - since >= ISOLATED_AFTER_S}


def _is_healthy(s: Snapshot, pod: PodView | None, before: float) -> bool:
    """Whether Kubernetes reports it healthy; a pod bound after `before` may still be starting."""
    if pod is None or s.failed(pod) or pod.deleting or pod.phase != "Running":
        return False
    node, bound = (s.nodes or {}).get(pod.node), pod.seen.bound
    return node is not None and node.ready and bound is not None and s.wall(bound) < before
