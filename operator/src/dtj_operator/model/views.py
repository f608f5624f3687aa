"""Pods and nodes as views: the few fields that decisions need.

A full pod takes about 30 kB as dicts, a view less than 1 kB. `kube/` decodes views; the planner reads them.
"""

import msgspec

from dtj_operator.model import times
from dtj_operator.model.exit_report import NO_REPORT, ExitReport
from dtj_operator.model.json import Json
from dtj_operator.model.names import Key


class ObjectView(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """What the metadata of a job's object says, or of a node."""

    namespace: str
    name: str
    uid: str
    version: str = ""  # resourceVersion
    job: str = ""  # name of its owner; without an owner, the job named in its label
    owner_uid: str = ""  # uid of its controller, if that is a job of ours
    deleting: bool = False
    removed: bool = False  # its last state: nothing of it is left, and its name is about to be free

    @property
    def key(self) -> Key:
        return Key(self.namespace, self.job)


class ContainerView(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One container or init container: why it is waiting, or how it ended."""

    name: str
    init: bool = False
    waiting: str = ""  # reason, such as ImagePullBackOff
    message: str = ""  # why it is waiting, or its termination message
    exit_code: int | None = None  # None: it has not ended
    reason: str = ""  # why it ended, such as OOMKilled
    finished_at: float | None = None  # seconds since the epoch, by the node's clock
    report: ExitReport = NO_REPORT  # what its termination message reports, if it is the trainer's

    @property
    def is_unseen(self) -> bool:
        """Whether its end was not seen, as if its node had restarted: the exit code is made up."""
        return self.reason in ("Unknown", "ContainerStatusUnknown")


class ConditionView(msgspec.Struct, frozen=True, gc=False, kw_only=True, rename="camel"):
    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""
    last_transition_time: str | None = None

    @property
    def since(self) -> float | None:
        """When the status last changed, in seconds since the epoch."""
        return times.parse(self.last_transition_time)


class ConditionedView(ObjectView, frozen=True, gc=False, kw_only=True):
    """An object with conditions."""

    conditions: tuple[ConditionView, ...] = ()

    def condition(self, kind: str) -> ConditionView | None:
        for condition in self.conditions:  # faster than next(...); called several times per pod and reconcile
            if condition.type == kind:
                return condition
        return None

    def if_true(self, kind: str) -> ConditionView | None:
        """This condition if its status is True."""
        found = self.condition(kind)
        return found if found is not None and found.status == "True" else None

    def true(self, kind: str) -> bool:
        """Whether it has this condition with the status True."""
        return self.if_true(kind) is not None


class Seen(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """Since when this process has seen a pod in each of these states; None: it is not in that state.

    In seconds of this process's monotonic clock. Timestamps in the pod come from the clocks of other
    machines, so they do not tell how long ago something happened.
    """

    bound: float | None = None  # to a node
    unschedulable: float | None = None
    terminating: float | None = None
    exited: float | None = None  # one of its containers, or all of the pod


class PodView(ConditionedView, frozen=True, gc=False, kw_only=True):
    """One pod as the planner sees it."""

    mislabelled: bool = False  # its labels were changed, so the Service does not select it
    index: int = -1
    attempt: int = -1
    phase: str = "Pending"
    reason: str = ""
    message: str = ""
    node: str = ""
    address: str = ""
    grace_s: int = 0  # between the request to delete it and its end
    grace_ends_at: float | None = None  # seconds since the epoch, by the API server's clock
    held_by: str = ""  # finalizer for which it still exists, although its kubelet is done with it
    containers: tuple[ContainerView, ...] = ()
    pod_group: str = ""  # name of the PodGroup that it belongs to
    avoids_nodes: bool = False  # it must not run on the nodes that its job avoided when it was created
    seen: Seen = Seen()  # set by the cache

    @property
    def ended(self) -> bool:
        """No container of it runs. The kubelet reports how containers ended before it sets the phase."""
        mains = [container for container in self.containers if not container.init]
        all_ended = bool(mains) and all(container.exit_code is not None for container in mains)
        return self.phase in ("Succeeded", "Failed") or all_ended

    @property
    def unschedulable(self) -> ConditionView | None:
        """The scheduler's report that no node has enough free capacity for it; None: there is none."""
        found = self.condition("PodScheduled") if self.phase == "Pending" else None
        known = found is not None and (found.status, found.reason) == ("False", "Unschedulable")
        return found if known else None

    @property
    def ready(self) -> bool:
        return self.true("Ready")


class PodGroupView(ObjectView, frozen=True, gc=False, kw_only=True):
    """A PodGroup that carries our label."""

    min_count: int = 1
    decided: bool = False  # the scheduler has tried to place it, with or without success
    waits_for: str = ""  # why the scheduler cannot place it, in the scheduler's words


class PodSettings(msgspec.Struct, frozen=True, gc=False, kw_only=True, rename="camel"):
    """What an admission adds to the pods."""

    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    node_selector: dict[str, str] = {}
    tolerations: list[dict[str, str | int]] = []


class AdmissionView(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """The quota that Kueue has reserved for a Workload."""

    cluster_queue: str
    pod_set: str
    count: int | None = None  # of pods; None: all
    flavors: tuple[str, ...] = ()  # names of ResourceFlavors, in Kueue's order
    chooses_nodes: bool = False  # by topology: pods wait for it with a scheduling gate


class PodSetView(msgspec.Struct, frozen=True, kw_only=True):
    """The pods for which a Workload asks its queue."""

    count: int
    spec: Json  # of each pod


class WorkloadView(ConditionedView, frozen=True, gc=False, kw_only=True):
    """A Workload of Kueue: what a job asks of its queue, and what it got. Any controller may own it."""

    active: bool = True
    asked: PodSetView | None = None  # only known while it has no owner
    admission: AdmissionView | None = None
    updates: tuple[PodSettings, ...] = ()  # of the admission checks
    unchecked: tuple[tuple[str, str], ...] = ()  # admission checks that are not ready: name, message


class NodeView(ObjectView, frozen=True, gc=False, kw_only=True):
    """One node as the planner sees it."""

    namespace: str = ""
    uid: str = ""
    removed: bool = True  # nodes are watched without a label selector, so a deleted one is really gone
    ready: bool = True
    turned_at: float | None = None  # of its last change of readiness, by the cluster's clock
    away_since: float | None = None  # since when this process sees it not ready, by its monotonic clock
    unschedulable: bool = False  # cordoned
    labels: dict[str, str] = {}

    @property
    def key(self) -> Key:
        return Key("", self.name)


class NodeLease(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """The current Lease of a node.

    renewed_at   seconds since the epoch, by the kubelet's clock
    duration_s   the Lease expires if it is not renewed for this long
    unchanged_s  how long the operator has read it without seeing a renewal, by the operator's own clock
    """

    renewed_at: float
    duration_s: float
    unchanged_s: float = 0.0
