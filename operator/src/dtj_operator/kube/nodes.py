"""The nodes of the cluster as views: whether each node is ready, and since when it is not.

Kubelets write the status of a node every few minutes even if nothing changes. Only readiness, cordons, labels
and the deletion of the node matter here.
"""

from collections.abc import Callable, Mapping
from datetime import datetime
from types import MappingProxyType

import msgspec

from dtj_operator.kube.cache import Cache
from dtj_operator.kube.wire import Meta, Page, Wire
from dtj_operator.names import Key


class _Condition(Wire):
    type: str = ""
    status: str = ""
    last_transition_time: datetime | None = None


class _Status(Wire):
    conditions: list[_Condition] = []


class _Spec(Wire):
    unschedulable: bool = False


class _Node(Wire):
    metadata: Meta
    spec: _Spec = msgspec.field(default_factory=_Spec)
    status: _Status = msgspec.field(default_factory=_Status)


class NodeView(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One node as the planner sees it."""

    name: str
    uid: str = ""
    version: str = ""  # resourceVersion
    ready: bool = True
    not_ready_since: float | None = None  # seconds since the epoch, by the API server's clock; None: ready
    unschedulable: bool = False  # cordoned
    labels: dict[str, str] = {}

    @property
    def key(self) -> Key:
        return Key("", self.name)

    @property
    def removed(self) -> bool:
        """Always True: nodes are watched without a label selector, so a deleted one is really gone."""
        return True


class NodeLease(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """The current Lease of a node.

    renewed_at   seconds since the epoch, by the kubelet's clock
    duration_s   the Lease expires if it is not renewed for this long
    unchanged_s  how long the operator has read it without seeing a renewal, by the operator's own clock
    """

    renewed_at: float
    duration_s: float
    unchanged_s: float = 0.0


_node = msgspec.json.Decoder(_Node)
_nodes = msgspec.json.Decoder(Page[_Node])


def decode_node(raw: bytes | msgspec.Raw) -> NodeView:
    """Decode one node; raises msgspec.DecodeError if it is not one."""
    return _view(_node.decode(raw))


def decode_nodes(raw: bytes) -> Page[NodeView]:
    """Decode a page of a list."""
    return _nodes.decode(raw).each(_view)


class NodeCache(Cache[NodeView]):
    """Nodes by name; `on_change` gets the name of a node that was deleted or whose readiness changed."""

    def __init__(self, on_change: Callable[[str], None]) -> None:
        super().__init__()
        self._on_change = on_change
        self._snapshot: Mapping[str, NodeView] | None = None

    def snapshot(self) -> Mapping[str, NodeView]:
        """All nodes at this moment; rebuilt only after a change, because every reconcile asks for it."""
        if self._snapshot is None:
            self._snapshot = MappingProxyType(
                {name: view for views in self._views.values() for name, view in views.items()}
            )
        return self._snapshot

    def on_reconnected(self) -> None:
        """Report nodes that are not ready: during the outage no reconcile was given any nodes."""
        for name, view in self.snapshot().items():
            if not view.ready:
                self._on_change(name)

    def _update_indexes(self, old: NodeView | None, new: NodeView | None) -> None:
        self._snapshot = None

    def _notify(self, old: NodeView | None, new: NodeView | None) -> None:
        if old is not None and (new is None or new.ready != old.ready):
            self._on_change(old.name)
        elif new is not None and not new.ready:
            self._on_change(new.name)


def _view(node: _Node) -> NodeView:
    meta = node.metadata
    condition = next((c for c in node.status.conditions if c.type == "Ready"), None)
    ready = condition is not None and condition.status == "True"
    since = condition.last_transition_time if condition else meta.creation_timestamp  # never ready
    return NodeView(
        name=meta.name,
        uid=meta.uid,
        version=meta.resource_version,
        ready=ready,
        not_ready_since=None if ready or since is None else since.timestamp(),
        unschedulable=node.spec.unschedulable,
        labels=meta.labels,
    )
