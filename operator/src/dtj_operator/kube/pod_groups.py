"""The PodGroups of jobs as views, and whether the cluster has them.

The scheduler binds no pod of a PodGroup before `minCount` of them fit at once. Kubernetes 1.36 serves
PodGroups as v1alpha2 and 1.37 as v1beta1, both only if an administrator switches them on. What we write and
read is the same in both.
"""

import logging
from collections.abc import Callable

import msgspec

from dtj_operator.kube import paths
from dtj_operator.kube.optional import Feature
from dtj_operator.kube.wire import Meta, Source, Wire, source
from dtj_operator.model import names
from dtj_operator.model.views import ConditionView, PodGroupView

_log = logging.getLogger(__name__)

DROPPED = (
    "the API server serves PodGroups, but pods of this namespace lose their schedulingGroup: switch on the "
    "feature gate GenericWorkload of each kube-apiserver, or exclude pods of jobs from the webhook that "
    "drops the field"
)
DROPPED_S = 600.0  # then a PodGroup is tried again
UNREADABLE = "the cluster serves PodGroups, but the operator cannot read them"
GRANT = "apply the chart's ClusterRole"


class _Gang(Wire):
    min_count: int = 1


class _Policy(Wire):
    gang: _Gang = msgspec.field(default_factory=_Gang)


class _Spec(Wire):
    scheduling_policy: _Policy = msgspec.field(default_factory=_Policy)


class _Status(Wire):
    conditions: tuple[ConditionView, ...] = ()


class _PodGroup(Wire):
    metadata: Meta
    spec: _Spec = msgspec.field(default_factory=_Spec)
    status: _Status = msgspec.field(default_factory=_Status)


def _view(group: _PodGroup) -> PodGroupView:
    decided = [c for c in group.status.conditions if c.type in _SCHEDULED]
    return PodGroupView(
        **group.metadata.identity(),
        min_count=group.spec.scheduling_policy.gang.min_count,
        decided=bool(decided),
        waits_for=next((condition.message for condition in decided if condition.status == "False"), ""),
    )


_SCHEDULED = ("PodGroupInitiallyScheduled", "PodGroupScheduled")  # in v1beta1, in v1alpha2


def pod_groups_of(api_version: str) -> Source[PodGroupView]:
    """The PodGroups in this version of their API."""
    return source(
        _PodGroup,
        _view,
        what=names.POD_GROUPS,
        path=lambda namespace: paths.pod_groups(api_version, namespace),
        required=False,
    )


class Gangs(Feature):
    """Whether the cluster places gangs; the clock is monotonic, in seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__(names.POD_GROUPS, names.POD_GROUP_VERSIONS, unreadable=UNREADABLE, grant=GRANT)
        self._clock = clock
        self._dropped_until: dict[str, float] = {}  # by namespace

    def off(self, namespace: str) -> str:
        """Return why jobs of this namespace get no PodGroup although the cluster serves them; else empty."""
        if self.problem:
            return self.problem
        return DROPPED if self._clock() < self._dropped_until.get(namespace, 0.0) else ""

    def note_dropped(self, namespace: str) -> None:
        """A new pod has lost its schedulingGroup, so it belongs to no PodGroup.

        An API server has its feature gate GenericWorkload off, maybe one of several, or a webhook of this
        namespace was built before the field.
        """
        if not self.off(namespace):
            _log.warning("placing pods one by one", extra={"namespace": namespace, "why": DROPPED})
        self._dropped_until[namespace] = self._clock() + DROPPED_S
