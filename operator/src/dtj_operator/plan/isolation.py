"""Which running pods do the others get no heartbeats from, although Kubernetes reports them healthy?

They are replaced, with scope Replica. If replica 0 hears from no replica on two or more nodes, replica 0
itself is isolated, and the others hold the state of the run. It is isolated too if neither the operator nor
other agents hear it, as when its agent is stopped. In doubt no pod is replaced, and the condition Healthy
names the silent replicas.
"""

from dtj_operator.model.memory import REPLICA, RUNNING
from dtj_operator.model.views import PodView
from dtj_operator.plan.snapshot import Snapshot

WITNESSES = 3  # agents that are asked whether they hear replica 0's; more would not be surer
ISOLATED_AFTER_S = 120.0  # replace a running pod if replica 0 has had no heartbeat from its agent for so long


def isolated_since(s: Snapshot) -> dict[int, float]:
    """Replicas whose pods run but whose heartbeats do not arrive, and since when."""
    answer = s.answer
    if s.scope != REPLICA:
        return {}
    if (since := _first_unheard_since(s)) is not None:
        return {0: since}
    if answer is None:
        return {}
    silent = {i: pod for i, pod in silent_pods(s).items() if _is_on_ready_node(s, pod)}
    known = {i: s.silent_since[i] for i, pod in silent.items() if _ran_before(s, pod, s.silent_since[i])}
    unheard = _unheard(s, silent, known) if known else {}
    return {i: since for i, since in unheard.items() if answer.observed_at - since >= ISOLATED_AFTER_S}


def _first_unheard_since(s: Snapshot) -> float | None:
    """Since when neither this operator nor other agents hear replica 0's, if that is long ago."""
    silence, pod = s.coordinator_silence, s.current.get(0)
    since = silence.unheard_since if silence is not None else None
    if silence is None or since is None or pod is None or pod.deleting or not _is_up(s, pod):
        return None
    is_long = s.now - max(since, silence.since) >= ISOLATED_AFTER_S
    return since if is_long and _is_on_ready_node(s, pod) and _ran_before(s, pod, since) else None


def unanswering(s: Snapshot) -> PodView | None:
    """The pod of replica 0, if its agent has not answered for long and no other agent is known to hear it."""
    silence, pod = s.coordinator_silence, s.current.get(0)
    if silence is None or silence.is_heard or s.now - silence.since < ISOLATED_AFTER_S:
        return None
    return pod if pod is not None and _is_up(s, pod) and not pod.deleting else None


def witnesses(s: Snapshot) -> list[PodView]:
    """Pods whose agents can tell whether they hear replica 0's, one a node, if possible not on its node."""
    first = s.current.get(0)
    able = [pod for i, pod in s.current.items() if i != 0 and pod.address and _is_up(s, pod)]
    elsewhere = [pod for pod in able if first is not None and pod.node != first.node]
    return list({pod.node: pod for pod in elsewhere or able}.values())[:WITNESSES]


def silent_pods(s: Snapshot, *, for_s: float = 0.0) -> dict[int, PodView]:
    """Pods that run and that replica 0 had no heartbeats from for so long, by index."""
    at = s.answer.observed_at if s.answer else s.now
    pods = {i: s.current[i] for i, since in s.silent_since.items() if i in s.current and at - since >= for_s}
    return {i: pod for i, pod in pods.items() if _is_up(s, pod) and not pod.deleting}


def requeue_at(s: Snapshot) -> float | None:
    """When the decision about silent replicas, or what the status says of them, changes by time alone."""
    moments = [] if s.coordinator_silence is None else [s.coordinator_silence.since]
    if pods := silent_pods(s, for_s=ISOLATED_AFTER_S).values():
        bound = [s.wall(pod.seen.bound) for pod in pods if pod.seen.bound is not None]
        moments += [*bound, s.memory.changed_at or s.now]
    return s.next_of(at + ISOLATED_AFTER_S for at in moments)


def _unheard(s: Snapshot, silent: dict[int, PodView], known: dict[int, float]) -> dict[int, float]:
    """Who is isolated: these replicas, replica 0, or in doubt none.

    silent  pods on ready nodes, by index
    known   those of them that are not just starting, and since when they are silent
    """
    others = [p for i, p in s.current.items() if i != 0 and i not in s.silent_since and _is_up(s, p)]
    # A pod that has just started may not have joined, so it does not show that replica 0 hears anyone.
    is_heard = any(_ran_before(s, pod, min(known.values())) for pod in others)
    if is_heard or len({pod.node for pod in silent.values()}) == 1:
        return known
    if others or len({silent[i].node for i in known}) == 1:
        return {}
    # They may fall silent at different times, so wait for the last one before deciding.
    return {0: max(known.values())}


def _is_up(s: Snapshot, pod: PodView) -> bool:
    """Whether its agent may send heartbeats."""
    return pod.phase == "Running" and not s.failed(pod) and not s.succeeded(pod)


def _is_on_ready_node(s: Snapshot, pod: PodView) -> bool:
    node = (s.nodes or {}).get(pod.node)
    return node is not None and node.ready


def _ran_before(s: Snapshot, pod: PodView, moment: float) -> bool:
    """Whether the pod was there before this moment; one that came later may still be starting.

    If it was bound before this process started, the phase tells: in phase Running all pods had started, but
    for some of elastic jobs, never replica 0's. The operator that wrote the phase may have had another
    clock, so the pod must also have run for long while this process watched.
    """
    bound, began = pod.seen.bound, s.memory.changed_at
    if bound is None:
        return False
    if s.wall(bound) < moment:
        return True
    if s.memory.phase != RUNNING or began is None or (s.job.elastic is not None and pod.index != 0):
        return False
    return began + ISOLATED_AFTER_S < moment and s.monotonic - bound >= ISOLATED_AFTER_S
