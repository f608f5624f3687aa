"""All caches together."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from dtj_operator.kube.cache import Cache, PodCache
from dtj_operator.kube.children import ChildCache
from dtj_operator.kube.optional import Feature
from dtj_operator.kube.pod_groups import Gangs
from dtj_operator.model.views import NodeView, PodGroupView, WorkloadView


@dataclass(frozen=True, kw_only=True)
class Caches:
    """What is known about the cluster without a request.

    nodes       returns None if nodes may not be read, or if their cache is not current
    gone_nodes  returns since when nodes that this process knew are gone; Kubernetes deletes others' pods
    """

    pods: PodCache
    services: ChildCache
    policies: ChildCache
    pod_groups: Cache[PodGroupView]
    gangs: Gangs
    workloads: Cache[WorkloadView]
    kueue: Feature
    nodes: Callable[[], Mapping[str, NodeView] | None] = lambda: None
    gone_nodes: Callable[[], Mapping[str, float]] = dict

    @property
    def children(self) -> tuple[ChildCache, ChildCache]:
        return self.services, self.policies

    def of(self, kind: str) -> ChildCache:
        """The cache of this kind of children."""
        return next(cache for cache in self.children if cache.kind.kind == kind)
