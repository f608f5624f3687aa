"""The Workloads of Kueue as views, and whether the cluster has Kueue."""

import msgspec

from dtj_operator.kube import paths
from dtj_operator.kube.optional import Feature
from dtj_operator.kube.wire import Meta, Wire, source
from dtj_operator.model import names
from dtj_operator.model.json import Json
from dtj_operator.model.views import AdmissionView, ConditionView, PodSettings, PodSetView, WorkloadView

_WITHOUT = "remove the label to run the job without a queue"
NOT_SERVED = (
    f"the job has the label {names.QUEUE_NAME}, but the cluster has no Workloads of {names.KUEUE_API}: "
    f"install Kueue, or {_WITHOUT}"
)
UNREADABLE = f"the job has the label {names.QUEUE_NAME}, but the operator cannot read Workloads of Kueue"
GRANT = f"set kueue.enabled of the operator's chart to true, or {_WITHOUT}"


class _Assignment(Wire):
    name: str = ""
    count: int | None = None
    flavors: dict[str, str] = {}
    topology_assignment: Json | None = None


class _Admission(Wire):
    cluster_queue: str = ""
    pod_set_assignments: list[_Assignment] = []


class _Check(Wire):
    name: str = ""
    state: str = ""
    message: str = ""
    pod_set_updates: list[PodSettings] = []


class _PodSet(Wire):
    count: int = 1
    template: msgspec.Raw = msgspec.Raw(b"{}")


class _Spec(Wire):
    active: bool = True
    pod_sets: list[_PodSet] = []


class _Status(Wire):
    conditions: tuple[ConditionView, ...] = ()
    admission: _Admission | None = None
    admission_checks: list[_Check] = []


class _Workload(Wire):
    metadata: Meta
    spec: _Spec = msgspec.field(default_factory=_Spec)
    status: _Status = msgspec.field(default_factory=_Status)


def _view(workload: _Workload) -> WorkloadView:
    meta, status = workload.metadata, workload.status
    checks = status.admission_checks
    controller = next((each.uid for each in meta.owner_references if each.controller), "")
    return WorkloadView(
        **meta.identity() | {"owner_uid": controller},
        active=workload.spec.active,
        asked=None if controller else _asked(workload.spec),
        conditions=status.conditions,
        admission=None if status.admission is None else _admission(status.admission),
        updates=tuple(u for check in checks if check.state == "Ready" for u in check.pod_set_updates),
        unchecked=tuple((check.name, check.message) for check in checks if check.state != "Ready"),
    )


def _asked(spec: _Spec) -> PodSetView | None:
    """As in `_admission`, the first set of pods counts."""
    if not spec.pod_sets:
        return None
    pods = spec.pod_sets[0]
    return PodSetView(count=pods.count, spec=_decode_template(pods.template).spec)


def _admission(found: _Admission) -> AdmissionView | None:
    """Our Workloads have one set of pods, so there is one assignment."""
    if not found.pod_set_assignments:
        return None
    pods = found.pod_set_assignments[0]
    return AdmissionView(
        cluster_queue=found.cluster_queue,
        pod_set=pods.name,
        count=pods.count,
        flavors=tuple(dict.fromkeys(pods.flavors.values())),
        chooses_nodes=pods.topology_assignment is not None,
    )


class _Template(Wire):
    spec: Json = {}


class _FlavorSpec(Wire):
    node_labels: dict[str, str] = {}
    tolerations: list[dict[str, str | int]] = []


class _Flavor(Wire):
    spec: _FlavorSpec = msgspec.field(default_factory=_FlavorSpec)


WORKLOADS = source(_Workload, _view, what=names.WORKLOADS, path=paths.workloads, required=False)
decode_workload = WORKLOADS.decode
_decode_template = msgspec.json.Decoder(_Template).decode
_decode_flavor = msgspec.json.Decoder(_Flavor).decode


def decode_flavor(raw: bytes) -> PodSettings:
    """What a ResourceFlavor adds to pods."""
    spec = _decode_flavor(raw).spec
    return PodSettings(node_selector=spec.node_labels, tolerations=spec.tolerations)


def kueue() -> Feature:
    """Whether the operator can use Kueue."""
    return Feature(
        names.WORKLOADS, (names.KUEUE_API,), not_served=NOT_SERVED, unreadable=UNREADABLE, grant=GRANT
    )
