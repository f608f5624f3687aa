"""Pods that are on a node and do not start, because a volume or the network of the pod is not ready.

Examples are a volume that is still attached to another node, a Secret that does not exist, and a CNI plugin
that fails. The kubelet reports these only in Events, which the operator has no permission to read, and as the
pod condition PodReadyToStartContainers. Images are pulled later, so a slow pull does not count.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from dtj_operator.model.views import PodView
from dtj_operator.plan.snapshot import Snapshot

NOTED_S = 15.0  # what a ConfigMap or Secret holds is there within seconds
SLOW_START_S = 120.0  # attaching a volume may take a minute
MOST_NAMES = 3


def _waits_since(s: Snapshot, pod: PodView) -> float | None:
    """When it was placed; None if it does not wait for volumes or the network."""
    if pod.phase != "Pending" or pod.deleting or pod.seen.bound is None:
        return None
    prepared = pod.condition("PodReadyToStartContainers")
    if prepared is None or prepared.status != "False":
        return None
    return s.wall(pod.seen.bound)


def waits_for(s: Snapshot, pod: PodView, seconds: float) -> bool:
    """Whether it waits so long for volumes or the network; from SLOW_START_S on that is an obstacle."""
    since = _waits_since(s, pod)
    return since is not None and s.now >= since + seconds


def noted(s: Snapshot) -> str | None:
    """Which pod waits for longer than most, before that is an obstacle."""
    late = [index for index, pod in s.current.items() if waits_for(s, pod, NOTED_S)]
    if not late:
        return None
    pod = s.current[min(late)]
    return f"pod {pod.name} on node {pod.node} waits for its volumes or network; {fix(s, pod)}"


def fix(s: Snapshot, pod: PodView) -> str:
    """What the user can check."""
    names = list(dict.fromkeys(_needed(s.job.template["spec"].get("volumes") or ())))
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    must = f"{', '.join(names[:MOST_NAMES])}{more} must exist, and " if names else ""
    return f"{must}the kubelet's Events say why: kubectl describe pod {pod.name}"


def requeue_at(s: Snapshot) -> float | None:
    """When the status has to report the next pod whose start is slow."""
    since = [at for pod in s.current.values() if (at := _waits_since(s, pod)) is not None]
    return s.next_of(at + limit for at in since for limit in (NOTED_S, SLOW_START_S))


def _needed(volumes: Any) -> Iterator[str]:
    """ConfigMaps and Secrets without which no container starts; the API server has checked these fields."""
    for volume in volumes:
        projected = volume.get("projected") or {}
        for each in (volume, *(projected.get("sources") or ())):
            for field, kind in (("configMap", "ConfigMap"), ("secret", "Secret")):
                source: Mapping[str, Any] = each.get(field) or {}
                name = source.get("secretName") or source.get("name")
                if name and not source.get("optional"):
                    yield f"{kind} {name}"
