"""Decodes pods directly from JSON to views, and notes since when this process has seen their states."""

from datetime import datetime

import msgspec

from dtj_operator.kube import paths
from dtj_operator.kube.wire import Meta, Wire, seconds, source
from dtj_operator.model import exit_report, names
from dtj_operator.model.printable import printable
from dtj_operator.model.views import ConditionView, ContainerView, PodView, Seen

TERMINATION_MESSAGE_LIMIT = 4096  # the kubelet keeps no more than this


class _Waiting(Wire):
    reason: str = ""
    message: str = ""


class _Terminated(Wire):
    exit_code: int = 0
    reason: str = ""
    message: str = ""
    finished_at: datetime | None = None


class _State(Wire):
    waiting: _Waiting | None = None
    terminated: _Terminated | None = None


class _ContainerStatus(Wire):
    name: str = ""
    state: _State = msgspec.field(default_factory=_State)


class _Status(Wire):
    phase: str = "Pending"
    reason: str = ""
    message: str = ""
    conditions: tuple[ConditionView, ...] = ()
    container_statuses: list[_ContainerStatus] = []
    init_container_statuses: list[_ContainerStatus] = []
    pod_i_p: str = msgspec.field(default="", name="podIP")


class _SchedulingGroup(Wire):
    pod_group_name: str = ""


class _Spec(Wire):
    node_name: str = ""
    scheduling_group: _SchedulingGroup = msgspec.field(default_factory=_SchedulingGroup)


class _Pod(Wire):
    metadata: Meta
    spec: _Spec = msgspec.field(default_factory=_Spec)
    status: _Status = msgspec.field(default_factory=_Status)


def _view(pod: _Pod) -> PodView:
    """Reduce a decoded pod to the fields that decisions need.

    Its job is its owner and its index is in its name, even if the labels were changed.
    """
    meta, status = pod.metadata, pod.status
    owner = meta.job
    over = meta.deletion_timestamp is not None and meta.deletion_grace_period_seconds == 0
    containers = [_container(c, init=True) for c in status.init_container_statuses]
    containers += [_container(c, init=False) for c in status.container_statuses]
    return PodView(
        **meta.identity(),
        mislabelled=bool(owner.uid)
        and not names.child_labels(owner.name, owner.uid).items() <= meta.labels.items(),
        index=_number(meta.name.removeprefix(f"{owner.name}-") if owner.uid else None),
        attempt=_number(meta.labels.get(names.ATTEMPT)),
        avoids_nodes=meta.labels.get(names.AVOIDS_NODES) == "true",
        phase=status.phase,
        reason=status.reason,
        message=status.message,
        node=pod.spec.node_name,
        pod_group=pod.spec.scheduling_group.pod_group_name,
        address=status.pod_i_p,
        grace_s=meta.deletion_grace_period_seconds or 0,
        grace_ends_at=seconds(meta.deletion_timestamp),
        removed=over and not meta.finalizers,
        held_by=meta.finalizers[0] if over and meta.finalizers else "",
        conditions=status.conditions,
        containers=tuple(containers),
    )


PODS = source(_Pod, _view, what="pods", path=paths.pods)


def seen(view: PodView, known: PodView | None, now: float) -> PodView:
    """The same pod, with the moments at which this process first saw its states.

    known   the pod of this name in the cache until now
    now     seconds of the monotonic clock
    """
    before = known.seen if known is not None and known.uid == view.uid else Seen()
    exited = view.phase in ("Succeeded", "Failed") or any(
        container.exit_code is not None for container in view.containers if not container.init
    )

    def since(holds: bool, earlier: float | None) -> float | None:
        return None if not holds else now if earlier is None else earlier

    moments = Seen(
        bound=since(bool(view.node), before.bound),
        unschedulable=since(view.unschedulable is not None, before.unschedulable),
        terminating=since(view.deleting, before.terminating),
        exited=since(exited, before.exited),
    )
    return msgspec.structs.replace(view, seen=moments)


def _container(status: _ContainerStatus, *, init: bool) -> ContainerView:
    waiting, ended = status.state.waiting, status.state.terminated
    if ended is not None:
        message = ended.message[:TERMINATION_MESSAGE_LIMIT]
        return ContainerView(
            name=status.name,
            init=init,
            exit_code=ended.exit_code,
            reason=ended.reason,
            message=printable(message),
            finished_at=seconds(ended.finished_at),
            report=exit_report.parse(message),
        )
    if waiting is not None:
        message = printable(waiting.message)
        return ContainerView(name=status.name, init=init, waiting=waiting.reason, message=message)
    return ContainerView(name=status.name, init=init)


def _number(text: str | None) -> int:
    """Parse a label or the end of a name; -1, never a valid index or attempt, if it is not a number."""
    return int(text) if text is not None and text.isdecimal() else -1
