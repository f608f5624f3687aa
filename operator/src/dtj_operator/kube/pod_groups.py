"""The PodGroups of jobs as views, and whether the cluster has them.

The scheduler binds no pod of a PodGroup before `minCount` of them fit at once. Kubernetes 1.36 serves
PodGroups as v1alpha2 and 1.37 as v1beta1, both only if an administrator switches them on. What we write and
read is the same in both.
"""

import asyncio
import logging

import msgspec

from dtj_operator.kube import paths
from dtj_operator.kube.api import Api
from dtj_operator.kube.cache import Cache
from dtj_operator.kube.discovery import first_served
from dtj_operator.kube.wire import Meta, Source, Wire, source
from dtj_operator.model import names
from dtj_operator.model.views import ConditionView, PodGroupView

_log = logging.getLogger(__name__)

DROPPED = (
    "the API server serves PodGroups, but drops schedulingGroup of pods: switch on the feature gate "
    "GenericWorkload of kube-apiserver and kube-scheduler, then restart the operator"
)
FORBIDDEN = "the cluster serves PodGroups, but the operator may not read them: apply the chart's ClusterRole"


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
PodGroupCache = Cache[PodGroupView]


def pod_groups_of(api_version: str) -> Source[PodGroupView]:
    """The PodGroups in this version of their API."""
    return source(
        _PodGroup,
        _view,
        what=names.POD_GROUPS,
        path=lambda namespace: paths.pod_groups(api_version, namespace),
        required=False,
    )


decode_pod_group = pod_groups_of("").decode  # the same in all versions


class Gangs:
    """Whether the cluster places gangs.

    api_version   of the PodGroups that the operator uses; empty: it uses none
    off           why it does not although it serves PodGroups, and what helps; else empty
    settled       whether that is known, and the PodGroups are in the cache
    """

    def __init__(self) -> None:
        self.api_version = self.off = ""
        self.settled = asyncio.Event()

    async def discover(self, api: Api) -> str:
        """Return the newest version that the API server serves; empty: none. Raises Unavailable."""
        return await first_served(api, names.POD_GROUP_VERSIONS, names.POD_GROUPS)

    def lack_rights(self) -> None:
        """The operator may not read PodGroups: it uses none."""
        self.off = FORBIDDEN

    def use(self, api_version: str) -> None:
        """Use this version from now on, unless the API server drops the field of pods."""
        if self.off != DROPPED:
            self.api_version, self.off = api_version, ""

    def note_dropped(self) -> None:
        """The API server dropped schedulingGroup from a pod, so its pods belong to no PodGroup.

        It serves PodGroups, but its feature gate GenericWorkload is off.
        """
        if not self.off:
            _log.warning("placing pods one by one from now on: %s", DROPPED)
        self.off, self.api_version = DROPPED, ""
