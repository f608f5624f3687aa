"""The nodes of the cluster as views: whether each is ready, and since when it is not.

A node's status is written every few minutes although nothing changes; only readiness, cordons, labels and
the node's end are news.
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
    not_ready_since: float | None = None  # seconds since the epoch, by the API server's clock; None: is ready
    unschedulable: bool = False  # cordoned
    labels: dict[str, str] = {}

    @property
    def key(self) -> Key:
        return Key("", self.name)

    @property
    def removed(self) -> bool:
        """Nodes are watched whatever their labels: one that the watch sees no more is gone."""
        return True


class NodeLease(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A node's Lease as it is now.

    renewed_at   seconds since the epoch, by the kubelet's clock
    duration_s   it has expired when it was not renewed for so long
    unchanged_s  for so long has no look at it found it renewed, by the operator's own clock
    """

    renewed_at: float
    duration_s: float
    unchanged_s: float = 0.0


_node = msgspec.json.Decoder(_Node)
_nodes = msgspec.json.Decoder(Page[_Node])


def decode_node(raw: bytes | msgspec.Raw) -> NodeView:
    """Decode one node; raises msgspec.DecodeError where it is none."""
    return _view(_node.decode(raw))


def decode_nodes(raw: bytes) -> Page[NodeView]:
    """Decode a page of a list."""
    return _nodes.decode(raw).each(_view)


class NodeCache(Cache[NodeView]):
    """Nodes by name; `on_change` gets the name of a node that vanished or whose readiness changed."""

    def __init__(self, on_change: Callable[[str], None]) -> None:
        super().__init__()
        self._on_change = on_change
        self._snapshot: Mapping[str, NodeView] | None = None

    def snapshot(self) -> Mapping[str, NodeView]:
        """All nodes at this moment; made anew only after a change, for every look at a job asks for it."""
        if self._snapshot is None:
            self._snapshot = MappingProxyType(
                {name: view for kept in self._kept.values() for name, view in kept.items()}
            )
        return self._snapshot

    def recall(self) -> None:
        """While in doubt nobody was told of nodes at all: name those that are not ready."""
        for name, view in self.snapshot().items():
            if not view.ready:
                self._on_change(name)

    def _moved(self, old: NodeView | None, new: NodeView | None) -> None:
        self._snapshot = None

    def _changed(self, old: NodeView | None, new: NodeView | None) -> None:
        if old is not None and (new is None or new.ready != old.ready):
            self._on_change(old.name)
        elif new is not None and not new.ready:
            self._on_change(new.name)


def _view(node: _Node) -> NodeView:
    meta = node.metadata
    condition = next((c for c in node.status.conditions if c.type == "Ready"), None)
    ready = condition is not None and condition.status == "True"
    since = condition.last_transition_time if condition else meta.creation_timestamp  # never was ready
    return NodeView(
        name=meta.name,
        uid=meta.uid,
        version=meta.resource_version,
        ready=ready,
        not_ready_since=None if ready or since is None else since.timestamp(),
        unschedulable=node.spec.unschedulable,
        labels=meta.labels,
    )
