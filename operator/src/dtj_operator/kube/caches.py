"""All caches together."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from dtj_operator.kube.cache import PodCache
from dtj_operator.kube.children import ChildCache
from dtj_operator.kube.optional import Feature
from dtj_operator.kube.pod_groups import Gangs, PodGroupCache
from dtj_operator.kube.workloads import WorkloadCache
from dtj_operator.model.views import NodeView


@dataclass(frozen=True, kw_only=True)
class Caches:
    """What is known about the cluster without a request.

    nodes       returns None if nodes may not be read, or if their cache is not current
    gone_nodes  returns since when nodes that this process knew are gone; Kubernetes deletes others' pods
    """

    pods: PodCache
    services: ChildCache
    policies: ChildCache
    pod_groups: PodGroupCache
    gangs: Gangs
    workloads: WorkloadCache
    kueue: Feature
    nodes: Callable[[], Mapping[str, NodeView] | None] = lambda: None
    gone_nodes: Callable[[], Mapping[str, float]] = dict

    @property
    def children(self) -> tuple[ChildCache, ChildCache]:
        return self.services, self.policies

    def of(self, kind: str) -> ChildCache:
        """The cache of this kind of children."""
        return next(cache for cache in self.children if cache.kind.kind == kind)
